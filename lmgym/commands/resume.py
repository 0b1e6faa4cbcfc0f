"""`lmgym train --resume`: a run goes on where it stopped, and its record stays true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lmgym.algorithms.registry import find_algorithm
from lmgym.checkpoint import newest_checkpoint
from lmgym.commands.train import TrainSettings, build, fill_buffer, flat_settings, report, undone_by_a_mistake
from lmgym.console import results
from lmgym.errors import UserError
from lmgym.run import Run

FIXED = {
    "env": "the environment",
    "env_options": "the environment",
    "reward": "the reward",
    "model": "the model",
    "ref_model": "the reference",
    "teacher": "the teacher",
    "samples": "who is sampled from",
    "lora": "the adapter",
    "lora_rank": "the adapter",
    "lora_alpha": "the adapter",
    "policy": "the policy",
    "shots": "the prompt",
    "system_prompt": "the prompt",
    "max_tokens": "the policy",
    "temperature": "the policy",
    "top_k": "the policy",
    "top_p": "the policy",
    "calculator": "the policy",
    "seed": "the randomness",
    "out": "the place",
    "name": "the place",
}
"""What a run keeps to its end, because iterations or evaluations before and after would not be of one thing."""


def algorithm_of(folder: Path, saved: dict[str, Any], named: str | None) -> str:
    """The algorithm of a saved run, which the command line may name again but not change."""
    if named is not None and find_algorithm(named) is not find_algorithm(saved["algorithm"]):
        raise UserError(
            f"{folder} was trained with {saved['algorithm']} and cannot go on with {named}: leave it out, or begin a "
            f"new run from its weights with lmgym train {named} --model {folder}."
        )
    return str(saved["algorithm"])


def changes(folder: Path, before: TrainSettings, after: TrainSettings) -> dict[str, list[Any]]:
    """The settings that were given anew, each with its old and its new value; refuses those that a run keeps."""
    old, new = flat_settings(before), flat_settings(after)
    changed = {name: [old[name], new[name]] for name in new if new[name] != old[name]}
    for name, (was, given) in changed.items():
        if name in FIXED:
            raise UserError(
                f"--{name} {_shown(given)} cannot be given on resume: {FIXED[name]} of {folder} stays as it "
                f"was (--{name} {_shown(was)}); begin a new run from its weights with lmgym train --model {folder}."
            )
    return changed


def resume(folder: Path, algorithm_name: str, before: TrainSettings, after: TrainSettings) -> Path:
    """Goes on where a run stopped, with its own settings but for the ones given again, which config.json remembers."""
    changed = changes(folder, before, after)
    checkpoint = newest_checkpoint(folder)
    config = {"algorithm": algorithm_name, **flat_settings(after)}
    history = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("changed_on_resume", [])
    if changed:
        history = [*history, {"after_iteration": int(checkpoint.name), **changed}]
    if history:
        config["changed_on_resume"] = history
    with undone_by_a_mistake(folder):
        algorithm = build(
            find_algorithm(algorithm_name),
            after,
            lambda: Run(folder, config, after.run.track),
            model=str(checkpoint),
        )
        algorithm.run.resume(algorithm)
        fill_buffer(algorithm, after.run.load_buffer_from_cache_at_start)
    results.print(f"resuming {folder} after iteration {algorithm.iteration}", soft_wrap=True)
    if changed:
        shown = ", ".join(f"{name} {_shown(was)} → {_shown(given)}" for name, (was, given) in changed.items())
        results.print(f"from here on: {shown}", markup=False, soft_wrap=True)
    algorithm.train()
    report(algorithm, folder)
    return folder


def _shown(value: Any) -> str:
    """A setting as it stands on a command line."""
    if isinstance(value, dict):
        return " ".join(f"{name} {option}" for name, option in value.items()) or "none"
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value)) or "none"
    return "none" if value in ("", None) else str(value)
