"""Flag names of other libraries, to suggest the corresponding flag."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from lmgym.errors import UserError
from lmgym.lookup import nearest
from lmgym.runs.old_names import old_flag

USUAL_NAMES = {
    "base_model": "model",
    "batch_size": "problems_per_iteration",
    "beta": "kl_coeff",
    "bf16": "dtype",
    "clip_ratio": "clip",
    "cliprange": "clip",
    "dataset": "env",
    "dataset_name": "env",
    "ent_coef": "entropy_coeff",
    "environment": "env",
    "epochs": "iterations",
    "epsilon": "clip_low",
    "epsilon_high": "clip_high",
    "eval_steps": "evaluate_every",
    "gamma": "discount",
    "lam": "gae_lambda",
    "loss_type": "averaging",
    "gradient_checkpointing": "recompute_activations",
    "kl_beta": "kl_coeff",
    "kl_coef": "kl_coeff",
    "limit": "problems",
    "lora_r": "lora_rank",
    "lr": "learning_rate",
    "lr_scheduler_type": "schedule",
    "max_completion_length": "max_tokens",
    "max_grad_norm": "max_gradient_norm",
    "max_new_tokens": "max_tokens",
    "model_name": "model",
    "model_name_or_path": "model",
    "num_epochs": "iterations",
    "num_fewshot": "shots",
    "num_generations": "group_size",
    "num_iterations": "iterations",
    "num_ppo_epochs": "updates_per_iteration",
    "num_samples": "samples",
    "num_steps": "iterations",
    "num_train_epochs": "iterations",
    "output_dir": "out",
    "per_device_train_batch_size": "problems_per_iteration",
    "ppo_epochs": "updates_per_iteration",
    "ref_model_name": "ref_model",
    "report_to": "track",
    "reward_fn": "reward",
    "reward_funcs": "reward",
    "run_name": "out",
    "save_path": "out",
    "save_steps": "save_every",
    "steps": "iterations",
    "task": "env",
    "train_batch_size": "problems_per_iteration",
    "use_peft": "lora_rank",
    "vf_coef": "value_coeff",
    "vllm_importance_sampling_cap": "tis_cap",
    "wandb": "track",
    "warmup": "warmup_steps",
}


def flag_names(settings: Any) -> list[str]:
    """The flags of nested settings."""
    names: list[str] = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        names += flag_names(value) if is_dataclass(value) else [field.name]
    return names


def refuse_unknown(unknown: Sequence[str], known: Collection[str], prog: str) -> None:
    """Raises a UserError for the first unknown argument, with the flag that was probably meant."""
    if not unknown:
        return
    if not unknown[0].startswith("-"):
        raise UserError(f"{unknown[0]!r} belongs to no flag; see {prog} --help.")
    given = unknown[0].split("=")[0]
    name = given.lstrip("-").replace("-", "_")
    sentence = old_flag(name, known) or old_flag(name.removeprefix("no_"), known)
    if sentence:
        raise UserError(f"{sentence}; see {prog} --help.")
    usual = USUAL_NAMES.get(name)
    meant = usual if usual in known else nearest(name, known)
    guess = f" (did you mean --{meant}?)" if meant else ""
    raise UserError(f"there is no flag {given}{guess}; see {prog} --help.")
