"""Checkpoints: everything a run needs to go on exactly where it stopped, without a pickle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from lmgym.errors import UserError
from lmgym.learning.learner import Learner
from lmgym.storage import whole_folder

if TYPE_CHECKING:
    from lmgym.algorithms.rl_algorithm import RLAlgorithm

STATE = "state.json"


def save_checkpoint(folder: Path, algorithm: RLAlgorithm) -> Path:
    """Writes weights, optimiser, reference and counters into `folder`/<iteration>; older ones go once it is whole.

    Random state needs no saving: every draw is a function of the run's seed and the iteration.
    """
    target = folder / f"{algorithm.iteration:06d}"
    with whole_folder(target) as staging:
        algorithm.policy.model.save(staging / "model")
        save_file(optimizer_tensors(algorithm.learner), staging / "optimizer.safetensors")
        reference = getattr(algorithm, "reference", None)
        if reference is not None:
            reference.save(staging / "reference.safetensors")
        state = {
            "iteration": algorithm.iteration,
            "optimizer_steps": algorithm.learner.steps_done,
            "policy_version": algorithm.policy.model.version,
        }
        (staging / STATE).write_text(json.dumps(state, indent=2))
    for other in folder.iterdir():
        if other.name.isdigit() and other != target:
            shutil.rmtree(other)
    return target


def load_checkpoint(folder: Path, algorithm: RLAlgorithm) -> None:
    """Brings an algorithm, whose model was loaded from the same checkpoint, to where that left off."""
    state: dict[str, Any] = json.loads((folder / STATE).read_text())
    algorithm.iteration = state["iteration"]
    algorithm.learner.steps_done = state["optimizer_steps"]
    algorithm.policy.model.version = state["policy_version"]
    restore_optimizer(algorithm.learner, load_file(folder / "optimizer.safetensors"))
    reference = getattr(algorithm, "reference", None)
    if reference is not None:
        reference.load(folder / "reference.safetensors")


def newest_checkpoint(run: Path) -> Path:
    """The last complete checkpoint of a run directory."""
    complete = sorted(path.parent for path in run.glob(f"checkpoints/[0-9]*/{STATE}"))
    if not complete:
        raise UserError(f"{run} has no checkpoint to resume from; give the folder of a run that saved one.")
    return complete[-1]


def optimizer_tensors(learner: Learner) -> dict[str, Tensor]:
    """The optimiser's moments under the names of their parameters."""
    tensors = {}
    for name, parameter in learner.model.trainable().items():
        for part, value in learner.optimizer.state.get(parameter, {}).items():
            tensors[f"{part}:{name}"] = value.contiguous()
    return tensors


def restore_optimizer(learner: Learner, tensors: dict[str, Tensor]) -> None:
    """Puts the moments back beside their parameters."""
    parameters = learner.model.trainable()
    for key, value in tensors.items():
        part, _, name = key.partition(":")
        if name not in parameters:
            raise UserError(f"the checkpoint has an optimiser state for {name}, which this model does not train.")
        parameter = parameters[name]
        learner.optimizer.state[parameter][part] = value.to(parameter.device)  # fused AdamW keeps `step` there too
