"""The weights that are handed to servers: a folder per version, which holds everything a server loads."""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from lmgym.assets.storage import staged_folder, writing_to
from lmgym.distributed.processes import processes
from lmgym.models.language_model import LanguageModel, base_network, full_tensor

HEAD = "lm_head.weight"


def write_weights(model: LanguageModel, root: Path) -> Path:
    """Writes the model's weights, or its adapter, in the compute dtype, and removes those of older versions.

    Every process calls it, so that sharded weights can be gathered, and the first one writes.
    """
    folder = root / f"version-{model.version}"
    if not processes().is_first:
        _tensors(model, is_kept=False)
        return folder
    with writing_to(root, "--weights_folder"):
        with staged_folder(folder) as filled:
            if model.has_lora:
                model.save(filled)
            else:
                _write_network(model, filled)
        for older in root.glob("version-*"):
            if older != folder:
                shutil.rmtree(older, ignore_errors=True)
    return folder


def _write_network(model: LanguageModel, folder: Path) -> None:
    """All tensors by their names in a checkpoint, and the output layer even where it is tied.

    A server that is not sent the tied output layer keeps the one that it loaded when it started.
    """
    base_network(model.network).config.save_pretrained(folder)
    save_file(_tensors(model), folder / "model.safetensors", {"format": "pt"})


def _tensors(model: LanguageModel, is_kept: bool = True) -> dict[str, Tensor]:
    """The tensors on the CPU; a process that keeps none only takes part in gathering them."""
    tensors: dict[str, Tensor] = {}
    if not (is_kept or model.is_sharded):
        return tensors
    for name, weight in base_network(model.network).named_parameters():
        whole = full_tensor(weight.detach())
        if is_kept:
            tensors[name] = whole.to("cpu", model.dtype).contiguous()
    if is_kept and HEAD not in tensors:
        tensors[HEAD] = tensors[_name_of_tied_weight(model)].clone()
    return tensors


def _name_of_tied_weight(model: LanguageModel) -> str:
    """The name of the input embedding, which the output layer shares."""
    head = model.head.get_parameter("weight")
    return next(name for name, weight in base_network(model.network).named_parameters() if weight is head)
