"""Loading a model by name: find its files, move it to its device, and check our log-probabilities against its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from lmgym.assets.catalogue import model_folder
from lmgym.console import quiet_transformers
from lmgym.errors import UserError
from lmgym.models.allocator import keep_freed_memory
from lmgym.models.attention import IMPLEMENTATION
from lmgym.models.flex_tree_attention import flex_works
from lmgym.models.language_model import LanguageModel, base_network, load_network, loading_errors
from lmgym.models.logit_transform import LogitTransform
from lmgym.models.lora import LoraSettings, add_lora, is_adapter, load_adapter
from lmgym.models.model_check import check_model
from lmgym.models.precision import bfloat16_is_faster, make_bfloat16_safe


def load_model(
    name: str, *, device: str = "auto", dtype: str = "auto", lora: LoraSettings | None = None
) -> LanguageModel:
    """Loads what `--model` names: a known name, a hub id, a model folder, a GGUF file or a run folder."""
    folder = model_folder(name)
    found_device = find_device(device)
    with quiet_transformers(), loading_errors(name):
        if is_adapter(folder):
            network, has_lora = load_adapter(folder), True
        else:
            network, has_lora = load_network(folder), False
        tokenizer = AutoTokenizer.from_pretrained(folder)
    if lora is not None and not has_lora:  # a loaded adapter is trained further instead
        network, has_lora = add_lora(network, lora), True
    return wrap_network(network, tokenizer, found_device, find_dtype(dtype, found_device), str(name), has_lora)


def wrap_network(
    network: Any,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    dtype: torch.dtype,
    name: str,
    has_lora: bool = False,
) -> LanguageModel:
    """Makes a language model of a network, which is moved to the device, set to evaluation mode and checked.

    If prefix sharing is exact for this network, its attention implementation is replaced by the one that does it.
    """
    keep_freed_memory()
    _require_linear_head(base_network(network), name)
    transform = LogitTransform.of(network.config)
    network = network.to(device).eval()
    model = LanguageModel(network, tokenizer, device, dtype, name, has_lora=has_lora, logit_transform=transform)
    if network.config._attn_implementation == IMPLEMENTATION:  # it was wrapped before
        model.set_prefix_sharing(False)
    if check_model(model):
        model.set_prefix_sharing(True)
        model.uses_flex_attention = device.type == "cuda" and flex_works(model)
    return model


def find_device(name: str = "auto") -> torch.device:
    """The device of that name; auto is the first available of CUDA, MPS and CPU."""
    if name != "auto":
        try:
            device = torch.device(name)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, ImportError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"device {name!r} cannot be used here ({reason}); try --device auto.") from None
        return device
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def find_dtype(name: str, device: torch.device) -> torch.dtype:
    """The compute dtype of that name; auto is bfloat16 where the device multiplies it faster than float32."""
    if name not in ("auto", "float32", "bfloat16"):
        raise UserError(f"dtype {name!r} is unknown; choose auto, float32 or bfloat16.")
    if name == "bfloat16" and device.type == "cpu":
        make_bfloat16_safe()
    if name == "auto" and device.type == "cuda":
        name = "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    elif name == "auto":
        name = "bfloat16" if device.type == "cpu" and bfloat16_is_faster() else "float32"
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def _require_linear_head(network: PreTrainedModel, name: str) -> None:
    """Refuses an output layer that is more than a weight and a bias, such as one with an adapter."""
    if type(network.get_output_embeddings()) is not nn.Linear:
        raise UserError(
            f"{name} cannot be trained here: its output layer is not a plain linear layer; "
            "choose another model, or other layers to adapt."
        )
