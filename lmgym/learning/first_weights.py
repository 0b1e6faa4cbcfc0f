"""The weights that learning began with, for an algorithm that begins again from them."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from lmgym.errors import UserError
from lmgym.learning.learner import Learner


class FirstWeights:
    """A copy of all that learns, as it was before it had learnt anything."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.weights = {name: weight.detach().clone() for name, weight in learner.parameters().items()}

    @torch.no_grad()
    def restore(self) -> None:
        """Puts the weights back and lets optimiser and schedule begin again."""
        for name, weight in self.learner.parameters().items():
            weight.copy_(self.weights[name])
        self.learner.forget()
        self.learner.steps_done = 0
        self.learner.model.version += 1

    def save(self, path: Path) -> None:
        """Writes them: a resumed run is given the model as it is, not as it was."""
        save_file(self.weights, path)

    def load(self, path: Path) -> None:
        """Reads them back."""
        if not path.exists():
            raise UserError("this run's checkpoint has no first model to go back to: resume it without --restart.")
        kept = load_file(path)
        self.weights = {name: kept[name].to(weight.device) for name, weight in self.weights.items()}
