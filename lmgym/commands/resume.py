"""`lmgym train --resume`: a run goes on where it stopped, and its record stays true."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmgym.algorithms.registry import find_algorithm
from lmgym.checkpoint import newest_checkpoint
from lmgym.commands.train import UNNAMED, TrainSettings, build, fill_buffer, flat_settings, report, undone_by_a_mistake
from lmgym.console import results
from lmgym.errors import UserError
from lmgym.run import Run
from lmgym.tracking import check_trackers

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
    name = saved["algorithm"]
    if name is None and named is None:
        raise UserError(
            f"config.json of {folder} cannot name its algorithm, which was defined in a script: put it into a module "
            f"and give lmgym train my_module:MyAlgorithm --resume {folder}."
        )
    if None not in (name, named) and find_algorithm(str(named)) is not find_algorithm(name):
        raise UserError(
            f"{folder} was trained with {name} and cannot go on with {named}: leave it out, or begin a new run from "
            f"its weights with lmgym train {named} --model {folder}."
        )
    return str(name or named)


def ask_for_names(folder: Path, saved: dict[str, Any], needed: Sequence[str], arguments: Sequence[str]) -> set[str]:
    """The settings that config.json could not name, of which those that are needed must be given now."""
    given = {argument.split("=")[0].removeprefix("--").replace("-", "_") for argument in arguments}
    unnamed = {name for name in UNNAMED if name in saved and saved[name] is None}
    for name in needed:
        if name in unnamed - given:
            raise UserError(f"config.json of {folder} has no {name}, because {UNNAMED[name]} in Python: give --{name}.")
    return unnamed


def changes(folder: Path, before: TrainSettings, after: TrainSettings, unnamed: set[str]) -> dict[str, list[Any]]:
    """The settings that were given anew, each with its old and its new value; refuses those that a run keeps."""
    old, new = flat_settings(before), flat_settings(after)
    changed = {name: [old[name], new[name]] for name in new if new[name] != old[name]}
    free = unnamed | ({"env_options", "reward"} if "env" in unnamed else set())
    for name, (was, given) in changed.items():
        if name in FIXED and name not in free:
            raise UserError(
                f"--{name} {_shown(given)} cannot be given on resume: {FIXED[name]} of {folder} stays as it "
                f"was (--{name} {_shown(was)}); begin a new run from its weights with lmgym train --model {folder}."
            )
    return changed | {name: [None, new[name]] for name in unnamed}


def resume(folder: Path, algorithm_name: str, before: TrainSettings, after: TrainSettings, unnamed: set[str]) -> Path:
    """Goes on where a run stopped, with its own settings but for the ones given again, which config.json remembers."""
    changed = changes(folder, before, after, unnamed)
    check_trackers(after.run.track)
    checkpoint = newest_checkpoint(folder)
    config = {"algorithm": algorithm_name, **flat_settings(after)}
    history = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("changed_on_resume", [])
    if changed:
        history = [*history, {"after_iteration": int(checkpoint.name), **changed}]
    if history:
        config["changed_on_resume"] = history
    with undone_by_a_mistake(folder):
        algorithm, memory = build(
            find_algorithm(algorithm_name),
            after,
            lambda: Run(folder, config, after.run.track),
            model=str(checkpoint),
        )
        algorithm.run.resume(algorithm)
        fill_buffer(algorithm, after.run.load_buffer_from_cache_at_start)
    results.print(f"resuming {folder} after iteration {algorithm.iteration}", soft_wrap=True)
    results.print(f"memory: {memory}", markup=False, soft_wrap=True)
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
