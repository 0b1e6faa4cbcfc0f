"""Checkpoints: everything a run needs to go on exactly where it stopped, without a pickle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from safetensors.torch import load_file, save_file

from lmgym.assets.storage import whole_folder
from lmgym.errors import UserError

if TYPE_CHECKING:
    from lmgym.algorithms.rl_algorithm import RLAlgorithm

STATE = "state.json"


class Companion(Protocol):
    """Something with weights of its own that a checkpoint keeps, such as a reference or a critic."""

    def save(self, path: Path) -> None:
        """Writes what cannot be had from elsewhere."""
        ...

    def load(self, path: Path) -> None:
        """Reads it back."""
        ...


def save_checkpoint(folder: Path, algorithm: RLAlgorithm) -> Path:
    """Writes weights, optimiser, companions and counters into `folder`/<iteration>; older ones go once it is whole.

    Random state needs no saving: every draw is a function of the run's seed and the iteration.
    """
    target = folder / f"{algorithm.iteration:06d}"
    steps, total = algorithm.learner.steps_done, algorithm.learner.settings.total_steps
    with whole_folder(target) as staging:
        algorithm.policy.model.save(staging / "model")
        save_file(algorithm.learner.optimizer_tensors(), staging / "optimizer.safetensors")
        for name, companion in algorithm.companions().items():
            companion.save(staging / f"{name}.safetensors")
        state = {
            "iteration": algorithm.iteration,
            "optimizer_steps": steps,
            "total_steps": total,
            "learning_rate": algorithm.config.learning_rate,
            "learning_rate_factor": algorithm.learning_rate_factor(max(steps - 1, 0), total),
            "policy_version": algorithm.policy.model.version,
            "memory": algorithm.memory,
        }
        (staging / STATE).write_text(json.dumps(state, indent=2))
    for other in folder.iterdir():
        if other.name.isdigit() and other != target:
            shutil.rmtree(other)
    return target


def load_checkpoint(folder: Path, algorithm: RLAlgorithm) -> None:
    """Brings an algorithm, built with the model that the run began with, to where the checkpoint left off.

    What was copied from that model before, such as a reference that has not moved, stays as it is.
    """
    state: dict[str, Any] = json.loads((folder / STATE).read_text())
    algorithm.policy.model.load_weights(folder / "model")
    algorithm.iteration = state["iteration"]
    algorithm.learner.steps_done = state["optimizer_steps"]
    algorithm.policy.model.version = state["policy_version"]
    algorithm.learner.restore_optimizer(load_file(folder / "optimizer.safetensors"))
    algorithm.memory = state.get("memory", {})
    total, rate = algorithm.learner.settings.total_steps, algorithm.config.learning_rate
    if state.get("learning_rate", rate) != rate:  # another rate begins a schedule of its own over the steps to come
        algorithm.continue_schedule(1.0)
    elif state.get("total_steps", total) != total:
        algorithm.continue_schedule(state["learning_rate_factor"])
    for name, companion in algorithm.companions().items():
        companion.load(folder / f"{name}.safetensors")


def newest_checkpoint(run: Path) -> Path:
    """The last complete checkpoint of a run directory."""
    complete = sorted(path.parent for path in run.glob(f"checkpoints/[0-9]*/{STATE}"))
    if not complete:
        raise UserError(f"{run} has no checkpoint to resume from; give the folder of a run that saved one.")
    return complete[-1]
