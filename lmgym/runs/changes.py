"""Which settings may change on resume, from the command line or from Python, so that config.json stays correct."""

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
    "judge": "the judge is a class of its own",
    "judge_model": "the judge's model was loaded by hand",
}
"""Why a setting of a run from Python may be null in config.json, so that the command line needs its flag."""

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
    "max_episode_tokens": "the policy",
    "temperature": "the policy",
    "top_k": "the policy",
    "top_p": "the policy",
    "calculator": "the policy",
    "critic": "the critic",
    "judge": "the judge",
    "judge_model": "the judge",
    "judge_prompt": "the judge",
    "seed": "the random seed",
    "out": "the run directory",
}
"""Settings that a run keeps, because iterations or evaluations before and after a change would not be comparable."""

HISTORY = "changed_on_resume"

PATHS = ("model", "ref_model", "teacher", "env", "eval_env", "out")
"""Settings that may be paths, of which one may have several spellings."""


def changes(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The settings that are known before and now and differ, each as [old, new]; refuses those that a run keeps."""
    old, new = _through_json(before), _through_json(now)
    compared = [name for name in new if name in old and name not in (HISTORY, "lmgym_version")]
    changed = {
        name: [old[name], new[name]]
        for name in compared
        if _normalised(name, old[name]) != _normalised(name, new[name])
    }
    free = {name for name in (*UNNAMED, "algorithm") if old.get(name) is None}
    free |= {"env_options", "reward"} if "env" in free else set()
    for name, (was, given) in changed.items():
        if name in FIXED and name not in free:
            raise UserError(
                f"--{name} {shown(given)} cannot be given on resume: {FIXED[name]} of {folder} is fixed "
                f"(--{name} {shown(was)}); start a new run from its weights with lmgym train --model {folder}."
            )
    return changed


def resumed_config(folder: Path, now: Mapping[str, Any], defaults: Mapping[str, Any], iteration: int) -> dict[str, Any]:
    """The config.json of a run that resumes after `iteration` with the settings `now`, with a history of changes.

    `defaults` are the values of settings that did not exist when the run was recorded.
    """
    saved, _ = upgraded(folder, json.loads((folder / "config.json").read_text(encoding="utf-8")))
    changed = changes(folder, {**defaults, **saved}, now)
    config = saved | {name: value for name, value in _through_json(now).items() if name in changed or name not in saved}
    if changed:
        config[HISTORY] = [*saved.get(HISTORY, []), {"after_iteration": iteration, **changed}]
    return config


def shown(value: Any) -> str:
    """A setting as on a command line."""
    if isinstance(value, dict):
        return " ".join(f"{name} {option}" for name, option in value.items()) or "none"
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value)) or "none"
    return "none" if value in ("", None) else str(value)


def _through_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings after a round trip through JSON, in which a tuple becomes a list."""
    return json.loads(json.dumps(dict(settings), default=str))


def _normalised(name: str, value: Any) -> Any:
    """A value that is equal for all spellings of a setting."""
    if name in PATHS and value and Path(value).expanduser().exists():
        return str(Path(value).expanduser().resolve())
    if name == "system_prompt" and value is not None:
        return load_system_prompt(value)
    return value
