"""What may change when a run is resumed, from the command line or from Python, so that its record stays true."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmgym.errors import UserError
from lmgym.policies.system_prompts import load_system_prompt
from lmgym.runs.old_names import upgraded

UNNAMED = {
    "env": "the environment was made by hand",
    "eval_env": "the environment to evaluate on was made by hand",
    "policy": "the policy is a class of its own",
    "shots": "the worked examples were chosen by hand",
}
"""Why a run from Python may have null in its config.json, where the command line has to be told."""

FIXED = {
    "algorithm": "the algorithm",
    "env": "the environment",
    "env_options": "the environment",
    "reward": "the reward",
    "model": "the model",
    "ref_model": "the reference",
    "teacher": "the teacher",
    "samples": "the sampled model",
    "lora_rank": "the adapter",
    "policy": "the policy",
    "shots": "the prompt",
    "system_prompt": "the prompt",
    "max_tokens": "the policy",
    "temperature": "the policy",
    "top_k": "the policy",
    "top_p": "the policy",
    "calculator": "the policy",
    "seed": "the random seed",
    "out": "the run directory",
}
"""What a run keeps to its end, because iterations or evaluations before and after would not be of one thing."""

HISTORY = "changed_on_resume"

PATHS = ("model", "ref_model", "teacher", "env", "eval_env", "out")
"""Settings that may be paths, which can be spelled in several ways."""


def changes(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The settings that are known before and now and differ, each as [old, new]; refuses those that a run keeps."""
    old, new = _as_written(before), _as_written(now)
    compared = [name for name in new if name in old and name not in (HISTORY, "lmgym_version")]
    changed = {
        name: [old[name], new[name]] for name in compared if _meaning(name, old[name]) != _meaning(name, new[name])
    }
    free = {name for name in (*UNNAMED, "algorithm") if old.get(name) is None}
    free |= {"env_options", "reward"} if "env" in free else set()
    for name, (was, given) in changed.items():
        if name in FIXED and name not in free:
            raise UserError(
                f"--{name} {shown(given)} cannot be given on resume: {FIXED[name]} of {folder} stays as it "
                f"was (--{name} {shown(was)}); begin a new run from its weights with lmgym train --model {folder}."
            )
    return changed


def resumed_config(folder: Path, now: Mapping[str, Any], defaults: Mapping[str, Any], iteration: int) -> dict[str, Any]:
    """config.json of a run that goes on after `iteration` with the settings `now`, and remembers what has changed.

    `defaults` are the settings of a run that was recorded before they existed.
    """
    saved, _ = upgraded(folder, json.loads((folder / "config.json").read_text(encoding="utf-8")))
    changed = changes(folder, {**defaults, **saved}, now)
    config = saved | {name: value for name, value in _as_written(now).items() if name in changed or name not in saved}
    if changed:
        config[HISTORY] = [*saved.get(HISTORY, []), {"after_iteration": iteration, **changed}]
    return config


def shown(value: Any) -> str:
    """A setting as it stands on a command line."""
    if isinstance(value, dict):
        return " ".join(f"{name} {option}" for name, option in value.items()) or "none"
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value)) or "none"
    return "none" if value in ("", None) else str(value)


def _as_written(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON gives them back, where a tuple is a list."""
    return json.loads(json.dumps(dict(settings), default=str))


def _meaning(name: str, value: Any) -> Any:
    """What is the same for all ways to spell a setting."""
    if name in PATHS and value and Path(value).expanduser().exists():
        return str(Path(value).expanduser().resolve())
    if name == "system_prompt" and value is not None:
        return load_system_prompt(value)
    return value
