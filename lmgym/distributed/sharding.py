"""`--shard`: every process keeps a part of the weights, gradients and moments (FSDP2), and gathers a layer to use it.

    entry ── forward(function) ──► function runs here, with the embedding, norm and output layer gathered
      └─ network
           └─ decoder layers      each gathers its own weights around its forward and its backward pass

FSDP gathers the weights of a module when its `forward` is called. The scorer uses the decoder and the output layer
separately, so both are called within the forward of one module, the entry.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from lmgym.distributed.processes import processes
from lmgym.errors import UserError
from lmgym.models.language_model import LanguageModel, base_network


class Entry(nn.Module):
    """The module through which all scoring enters a sharded network."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs a function while the weights outside of the layers are gathered."""
        return function(*arguments)


def shard(model: LanguageModel) -> None:
    """Distributes a model's weights over all processes; from now on they are DTensors."""
    if processes().count == 1:
        raise UserError("--shard needs several processes: torchrun --nproc-per-node 2 -m lmgym train … --shard")
    if not hasattr(checkpoint, "HuggingFaceStorageWriter"):
        raise UserError(f"--shard needs torch 2.9 or later; this is torch {torch.__version__}.")
    if model.has_lora or not model.shares_prefixes:
        raise UserError(f"--shard trains all weights of a model like Llama or Qwen: {model.name} cannot be sharded.")
    decoder: Any = base_network(model.network).get_decoder()
    entry = Entry(model.network)
    for layer in decoder.layers:
        fully_shard(layer, mesh=_mesh(model.device.type))
    # By default the outermost module would stay whole after a forward pass without a backward pass.
    fully_shard(entry, mesh=_mesh(model.device.type), reshard_after_forward=True)
    for module in entry.modules():
        if isinstance(module, FSDPModule):
            # The denominators of our losses are those of all processes already.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    model.entry = entry


MESHES: dict[str, DeviceMesh] = {}
"""All processes in one dimension, by the type of their device."""


def _mesh(device_type: str) -> DeviceMesh:
    if device_type not in MESHES:
        MESHES[device_type] = init_device_mesh(device_type, (processes().count,))
    return MESHES[device_type]


def release_meshes() -> None:
    """Ends the threads of the process group, which tensors in caches of torch would keep alive through their mesh.

    A thread of gloo that frees a tensor while the interpreter ends aborts the process.
    """
    gc.collect()
    for mesh in MESHES.values():
        getattr(mesh, "_pg_registry", {}).clear()
    MESHES.clear()
