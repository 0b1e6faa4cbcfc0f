"""Checkpoints: everything a run needs to resume exactly where it stopped, without a pickle."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from lmgym.assets.storage import staged_folder
from lmgym.distributed.processes import processes
from lmgym.errors import UserError
from lmgym.runs.sharded_checkpoint import has_shards, load_shards, save_shards
from lmgym.runs.training import Training

STATE = "state.json"


def save_checkpoint(folder: Path, algorithm: Training) -> Path:
    """Writes weights, optimiser, auxiliary state and counters into `folder`/<iteration>, then deletes older ones.

    Random state needs no saving: all randomness is a function of the run's seed and the iteration. Only the first
    process of a run calls it, unless the model is sharded: then every process writes its part.
    """
    target = folder / f"{algorithm.iteration:06d}"
    model, steps, total = algorithm.policy.model, algorithm.learner.steps_done, algorithm.learner.settings.total_steps
    with _shared_staging(target) if model.is_sharded else staged_folder(target) as staging:
        if model.is_sharded:
            save_shards(staging, algorithm.learner)
            if not processes().is_first:
                return target
        else:
            model.save(staging / "model")
            save_file(algorithm.learner.optimizer_tensors(), staging / "optimizer.safetensors")
        for name, auxiliary in algorithm.auxiliary_state.items():
            auxiliary.save(staging / f"{name}.safetensors")
        state = {
            "iteration": algorithm.iteration,
            "optimizer_steps": steps,
            "total_steps": total,
            "learning_rate": algorithm.config.learning_rate,
            "learning_rate_factor": algorithm.learner.schedule(max(steps - 1, 0), total),
            "policy_version": algorithm.policy.model.version,
            "algorithm_state": algorithm.state,
        }
        (staging / STATE).write_text(json.dumps(state, indent=2))
    for other in folder.iterdir():
        if other.name.isdigit() and other != target:
            shutil.rmtree(other)
    return target


@contextlib.contextmanager
def _shared_staging(target: Path) -> Iterator[Path]:
    """A folder for all processes to fill, which replaces `target` once it is complete."""
    if not processes().is_first:
        yield processes().decide(Path)
        return
    with staged_folder(target) as staging:
        yield processes().decide(lambda: staging)


def load_checkpoint(folder: Path, algorithm: Training) -> None:
    """Restores an algorithm that was built with the run's initial model to the state of the checkpoint.

    What was copied from the initial model, such as a reference that was never updated, is unchanged.
    """
    state: dict[str, Any] = json.loads((folder / STATE).read_text())
    algorithm.iteration = state["iteration"]
    if has_shards(folder):
        load_shards(folder, algorithm.learner)
    else:
        algorithm.learner.restore(folder)
    algorithm.learner.steps_done = state["optimizer_steps"]
    algorithm.policy.model.version = state["policy_version"]
    algorithm.state = state.get("algorithm_state", state.get("memory", {}))  # its name before version 0.2
    total, rate = algorithm.learner.settings.total_steps, algorithm.config.learning_rate
    if state.get("learning_rate", rate) != rate:  # another rate starts a new schedule over the remaining steps
        algorithm.continue_schedule(1.0)
    elif state.get("total_steps", total) != total:
        algorithm.continue_schedule(state["learning_rate_factor"])
    for name, auxiliary in algorithm.auxiliary_state.items():
        auxiliary.load(folder / f"{name}.safetensors")


def newest_checkpoint(run: Path) -> Path:
    """The last complete checkpoint of a run directory."""
    complete = sorted(path.parent for path in run.glob(f"checkpoints/[0-9]*/{STATE}"))
    if not complete:
        raise UserError(
            f"{run} has no checkpoint to resume from; give the folder of a run that saved one (--save_every, "
            "--save_minutes), or start a new run from its weights with --model."
        )
    return complete[-1]
