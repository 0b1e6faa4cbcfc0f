"""LoRA through PEFT: low-rank adapters are trained, and the frozen base model can serve as the reference."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from lmgym.assets.catalogue import model_folder
from lmgym.errors import UserError

REFERENCE = "reference"
"""Name of the frozen PEFT adapter that a reference policy uses."""

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True)
class LoraSettings:
    """Rank, scale and target layers of a new adapter."""

    rank: int = 16
    alpha: int = 32
    target_modules: str = "all-linear"
    """Names of the adapted layers, separated by commas; all-linear is every linear layer but the output layer."""
    seed: int = 0
    """Seed of the adapter's initial weights."""


def add_lora(network: PreTrainedModel, settings: LoraSettings) -> Any:
    """Freezes the network and adds a trainable adapter to its linear layers."""
    peft = _import_peft()
    modules: str | list[str] = settings.target_modules
    if settings.target_modules != "all-linear":
        modules = [module.strip() for module in settings.target_modules.split(",")]
    config = peft.LoraConfig(r=settings.rank, lora_alpha=settings.alpha, target_modules=modules, task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):  # PEFT initialises from the global generator
        torch.default_generator.manual_seed(settings.seed)
        adapted = peft.get_peft_model(network, config)
    if network.name_or_path and Path(network.name_or_path).exists():
        _set_base_path(adapted, Path(network.name_or_path))
    return adapted


def load_adapter(folder: Path) -> Any:
    """Loads an adapter folder and the base model that it names; the adapter is trainable."""
    peft = _import_peft()
    base = find_base(folder)
    network = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, use_safetensors=True)
    adapted = peft.PeftModel.from_pretrained(network, str(folder), is_trainable=True)
    _set_base_path(adapted, base)
    return adapted


def restore_adapter(network: Any, folder: Path) -> None:
    """Loads saved adapter weights into the trainable adapter of a network; the ranks must be equal."""
    peft = _import_peft()
    rank, here = adapter_rank(folder), network.peft_config["default"].r
    if rank != here:
        raise UserError(f"the adapter in {folder} has rank {rank}, but the adapter to load it into has rank {here}.")
    peft.set_peft_model_state_dict(network, load_file(folder / ADAPTER_WEIGHTS), adapter_name="default")


def base_linear(module: Any) -> nn.Linear:
    """The linear layer itself, without its adapters."""
    return module.base_layer if hasattr(module, "base_layer") else module


def low_rank_factors(module: Any) -> list[tuple[Tensor, Tensor]] | None:
    """Of each active adapter of a linear layer, [rank, inputs] and the scaled [outputs, rank]; None if it has others.

    Others are layers that are not linear, and variants of LoRA such as DoRA.
    """
    if type(base_linear(module)) is not nn.Linear:
        return None
    if not hasattr(module, "base_layer") or module.disable_adapters:
        return []
    names = [name for name in module.active_adapters if name in module.lora_A]
    if module.merged or any(name in module.lora_variant or module.lora_B[name].bias is not None for name in names):
        return None
    return [(module.lora_A[name].weight, module.scaling[name] * module.lora_B[name].weight) for name in names]


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter instead of a full model."""
    return (folder / ADAPTER_CONFIG).is_file()


def adapter_rank(folder: Path) -> int:
    """The rank of a saved adapter."""
    return int(_read_config(folder).get("r") or 0)


def find_base(adapter: Path) -> Path:
    """The folder of an adapter's base model; a relative path is first tried from the adapter's folder upwards."""
    name = str(_read_config(adapter).get("base_model_name_or_path") or "")
    for start in (adapter.absolute(), *adapter.absolute().parents):
        found = start / name
        if name and found.exists() and not is_adapter(found):
            return model_folder(found)
    try:
        return model_folder(name)
    except UserError as error:
        raise UserError(
            f"the adapter in {adapter} was trained on {name!r}, which is not found beside it, above it or here: write "
            f"the path of that model into base_model_name_or_path of {adapter / ADAPTER_CONFIG}."
        ) from error


def _read_config(adapter: Path) -> dict[str, Any]:
    try:
        return json.loads((adapter / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{adapter / ADAPTER_CONFIG} is not JSON: {error}.") from error


def _set_base_path(network: Any, base: Path) -> None:
    """Sets the base model's path to an absolute one, which is valid from any working directory."""
    for config in network.peft_config.values():
        config.base_model_name_or_path = str(base.absolute())


def _import_peft() -> Any:
    try:
        import peft
    except ImportError:
        raise UserError("LoRA needs the peft package; install it with: pip install 'lmgym[lora]'.") from None
    return peft
