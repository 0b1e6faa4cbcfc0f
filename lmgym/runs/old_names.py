"""The current names of flags and settings of version 0.1, for old command lines and old run directories."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lmgym.errors import UserError

RENAMED = {
    "normalisation": "advantage_norm",
    "max_ratio": "tis_cap",
    "max_sampler_ratio": "tis_cap",
    "trace": "gae_lambda",
    "max_helpings": "max_resample_rounds",
    "sharpness_good": "temperature_positive",
    "sharpness_bad": "temperature_negative",
    "load_buffer_from_cache_at_start": "load_episodes",
}

REMOVED = {
    "name": "a run directory is named by --out, as in --out runs/NAME",
    "import": "an environment that a module registers is named as --env my_module:name",
    "lora": "--lora_rank above 0 trains a LoRA adapter",
    "lora_alpha": "LoRA's alpha is twice --lora_rank",
    "token_budget": "give --iterations",
    "weight_decay": "AdamW runs without weight decay",
    "gradient_accumulation_steps": "--micro_batch_tokens sets the size of a pass and does not change the gradient",
    "buffer_capacity": "the buffer keeps the last 4096 episodes in memory and all of them on disk",
    "balanced_replay": "--replay_episodes replays whole groups",
    "evaluate_at_start": "a run is evaluated before and after training; --eval_problems 0 turns evaluation off",
    "kl_estimator": "the gradient of the KL penalty is exact and independent of the estimator",
    "kl_on_silent_groups": "the KL penalty is always over all episodes",
}

NEUTRAL: dict[str, Any] = {
    "normalisation": "none",
    "max_ratio": 0.0,
    "kl_place": "loss",
    "kl_target": 0.0,
    "entropy_coeff": 0.0,
    "filter_groups": False,
    "discount": 1.0,
    "baseline": "greedy",
    "token_budget": 0,
    "weight_decay": 0.0,
    "buffer_capacity": 4096,
    "balanced_replay": False,
    "kl_on_silent_groups": True,
}
"""Values of removed settings with which an algorithm computes the same as now."""

AVERAGING = {"rloo": "constant", "dr-grpo": "constant", "maxrl": "constant", "gspo": "episode", "sapo": "episode"}
"""The loss average of algorithms that no longer have the setting, where it is not `token`."""


def old_flag(name: str, known: Collection[str]) -> str | None:
    """The message for a flag of version 0.1: its current name, or what replaces it."""
    if name in RENAMED:
        new = RENAMED[name]
        return f"--{name} is now called --{new}" + ("" if new in known else ", which this command does not have")
    return f"--{name} was removed: {REMOVED[name]}" if name in REMOVED else None


def upgraded(folder: Path, saved: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The config.json of an old run in current names, and a message that says what changed; empty for a new run."""
    if "lmgym_version" in saved:
        return dict(saved), ""
    config = {name: value for name, value in saved.items() if name not in RENAMED and name not in REMOVED}
    found = {old: new for old, new in RENAMED.items() if old in saved}
    config |= {new: saved[old] for old, new in found.items()}
    if not saved.get("lora"):
        config["lora_rank"] = 0
    if saved.get("imports"):
        config["env"] = f"{saved['imports'][0]}:{saved['env']}"
    config["out"] = str(folder)
    changes = [f"--{old} is now --{new}" for old, new in found.items()]
    changes += [f"--{name} was removed" for name in REMOVED if name in saved]
    return config, f"{folder} was written by lmgym 0.1: {', '.join(changes)}." if changes else ""


def check_old_run(folder: Path, saved: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises a UserError if an old run used a removed setting that changed what its algorithm computed."""
    if "lmgym_version" in saved:
        return
    neutral = {**NEUTRAL, "averaging": AVERAGING.get(str(saved.get("algorithm")), "token")}
    if saved.get("lora"):
        neutral["lora_alpha"] = 2 * saved["lora_rank"]
    lost = [name for name, value in neutral.items() if _is_lost(name, known) and saved.get(name, value) != value]
    ratios = {saved[name] for name in ("max_ratio", "max_sampler_ratio") if name in saved}
    if len(ratios) > 1 and saved.get("kl_coeff"):
        lost.append("max_ratio")
    if lost:
        raise UserError(
            f"{folder} was written by lmgym 0.1 with --{lost[0]} {saved[lost[0]]}, which its algorithm no longer has: "
            f"start a new run from its weights with lmgym train --model {folder}."
        )


def _is_lost(name: str, known: Collection[str]) -> bool:
    return RENAMED.get(name, name) not in known
