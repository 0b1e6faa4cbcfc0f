"""`lmgym train --resume`: continues a run from its newest checkpoint and records changed settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmgym.algorithms.catalogue import canonical_name
from lmgym.algorithms.registry import find_algorithm
from lmgym.commands.train import TrainSettings, build, fill_buffer, flat_settings, report
from lmgym.console import results
from lmgym.errors import UserError
from lmgym.runs.changes import UNNAMED, changes, shown
from lmgym.runs.checkpoint import newest_checkpoint
from lmgym.runs.run import Run
from lmgym.runs.tracking import check_trackers


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
            f"{folder} was trained with {name} and cannot continue with {named}: leave it out, or start a new run from "
            f"its weights with lmgym train {named} --model {folder}."
        )
    return str(name or named)


def require_names(folder: Path, saved: dict[str, Any], needed: Sequence[str], arguments: Sequence[str]) -> None:
    """Raises a UserError for a needed setting that config.json could not name and that is not given."""
    given = {argument.split("=")[0].removeprefix("--").replace("-", "_") for argument in arguments}
    unnamed = {name for name in UNNAMED if name in saved and saved[name] is None}
    for name in needed:
        if name in unnamed - given:
            raise UserError(f"config.json of {folder} has no {name}, because {UNNAMED[name]} in Python: give --{name}.")


def resume(
    folder: Path, algorithm_name: str, saved: dict[str, Any], before: TrainSettings, after: TrainSettings
) -> Path:
    """Resumes a run with its own settings, except those given again, which config.json records."""
    given = flat_settings(after)
    changed = changes(folder, flat_settings(before) | saved, given)  # before anything is loaded
    check_trackers(after.run.track)
    newest_checkpoint(folder)
    config = {"algorithm": canonical_name(algorithm_name), **given}
    algorithm, memory = build(
        find_algorithm(algorithm_name), after, lambda: Run(folder, config, after.run.track, after.run.minutes)
    )
    algorithm.run.resume(algorithm)
    fill_buffer(algorithm, after.run.load_episodes)
    results.print(f"resuming {folder} after iteration {algorithm.iteration}", soft_wrap=True)
    results.print(f"memory: {memory}", markup=False, soft_wrap=True)
    if changed:
        listed = ", ".join(f"{name} {shown(was)} → {shown(now)}" for name, (was, now) in changed.items())
        results.print(f"from here on: {listed}", markup=False, soft_wrap=True)
    algorithm.train()
    report(algorithm, folder)
    return folder
