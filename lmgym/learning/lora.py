"""LoRA through PEFT: small matrices learn, the base model stays as it was and serves as its own reference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from lmgym.errors import UserError

REFERENCE = "reference"


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
        return peft.get_peft_model(network, config)


def load_adapter(folder: Path) -> Any:
    """The base model that an adapter folder names, with that adapter on it, ready to learn on."""
    from lmgym.assets import model_folder

    peft = _import_peft()
    base_name = peft.PeftConfig.from_pretrained(str(folder)).base_model_name_or_path
    base = AutoModelForCausalLM.from_pretrained(model_folder(base_name), dtype=torch.float32, use_safetensors=True)
    return peft.PeftModel.from_pretrained(base, str(folder), is_trainable=True)


def _import_peft() -> Any:
    try:
        import peft
    except ImportError:
        raise UserError("LoRA needs the peft package; install it with: pip install 'lmgym[lora]'.") from None
    return peft
