"""The initial weights of a run, for an algorithm that restarts from them in each iteration."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file

from lmgym.errors import UserError
from lmgym.learning.learner import Learner


class InitialWeights:
    """A copy of all trainable parameters before the first update."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.weights = {name: weight.detach().clone() for name, weight in learner.parameters().items()}

    def restore(self) -> None:
        """Restores the weights, and resets the optimiser and the learning-rate schedule."""
        self.learner.set_weights(self.weights)

    def save(self, path: Path) -> None:
        """Writes them to a checkpoint."""
        save_file(self.weights, path)

    def load(self, path: Path) -> None:
        """Loads them from a checkpoint."""
        if not path.exists():
            raise UserError(
                "this run's checkpoint has no initial weights to restart from: resume it without --restart."
            )
        kept = load_file(path)
        self.weights = {name: kept[name].to(weight.device) for name, weight in self.weights.items()}
