"""LoRA through PEFT: small matrices learn, the base model stays as it was and serves as its own reference."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from lmgym.assets.catalogue import model_folder
from lmgym.errors import UserError

REFERENCE = "reference"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True)
class LoraSettings:
    """The shape of the adapter."""

    rank: int = 16
    alpha: int = 32
    target_modules: str = "all-linear"
    """Names of the layers to adapt, separated by commas."""
    seed: int = 0
    """Where the first weights of the adapter come from."""


def add_lora(network: PreTrainedModel, settings: LoraSettings) -> Any:
    """Freezes the network and puts a trainable adapter beside its linear layers."""
    peft = _import_peft()
    modules: str | list[str] = settings.target_modules
    if settings.target_modules != "all-linear":
        modules = [module.strip() for module in settings.target_modules.split(",")]
    config = peft.LoraConfig(r=settings.rank, lora_alpha=settings.alpha, target_modules=modules, task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):  # PEFT draws from the global generator
        torch.default_generator.manual_seed(settings.seed)
        adapted = peft.get_peft_model(network, config)
    if network.name_or_path and Path(network.name_or_path).exists():
        _name_base(adapted, Path(network.name_or_path))
    return adapted


def load_adapter(folder: Path) -> Any:
    """The base model that an adapter folder names, with that adapter on it, ready to learn on."""
    peft = _import_peft()
    base = find_base(folder)
    network = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, use_safetensors=True)
    adapted = peft.PeftModel.from_pretrained(network, str(folder), is_trainable=True)
    _name_base(adapted, base)
    return adapted


def restore_adapter(network: Any, folder: Path) -> None:
    """Reads the saved weights of the adapter that learns into a network that has one of the same shape."""
    peft = _import_peft()
    rank, here = adapter_rank(folder), network.peft_config["default"].r
    if rank != here:
        raise UserError(f"the adapter in {folder} has rank {rank}, and the one to go on with has rank {here}.")
    peft.set_peft_model_state_dict(network, load_file(folder / ADAPTER_WEIGHTS), adapter_name="default")


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter instead of a whole model."""
    return (folder / ADAPTER_CONFIG).is_file()


def adapter_rank(folder: Path) -> int:
    """The rank of a saved adapter."""
    return int(_read_config(folder).get("r") or 0)


def find_base(adapter: Path) -> Path:
    """The folder of an adapter's base model; a relative one is looked for from the adapter upwards, then from here."""
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


def _name_base(network: Any, base: Path) -> None:
    """Writes down where the base is in a way that holds from any folder."""
    for config in network.peft_config.values():
        config.base_model_name_or_path = str(base.absolute())


def _import_peft() -> Any:
    try:
        import peft
    except ImportError:
        raise UserError("LoRA needs the peft package; install it with: pip install 'lmgym[lora]'.") from None
    return peft
