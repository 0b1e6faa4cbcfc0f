"""The critic: the expected return before each token."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lmgym.learning.batch import Batch
from lmgym.learning.learner import Learner
from lmgym.models.language_model import LanguageModel

MODEL = "network."
HEAD = "value_head."
OPTIMISER = "optimiser."
STEPS = "steps_done"


def make_value_head(model: LanguageModel) -> nn.Linear:
    """A linear map from the last hidden state to one number, initialised to 0."""
    head = nn.Linear(model.hidden_size, 1, device=model.device, dtype=torch.float32)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


class Critic:
    """A value head on the policy's network, trained with it, or on a second network with its own optimiser."""

    def __init__(self, learner: Learner, has_own_network: bool) -> None:
        self.learner = learner
        self.has_own_network = has_own_network

    def values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The value [episodes, length] before each action token, and [episodes] after the last token."""
        return self.learner.values(batch)

    def save(self, path: Path) -> None:
        """Writes the value head and, if the critic has them, its own network and optimiser."""
        head = self.learner.value_head
        assert head is not None
        tensors = {HEAD + name: weight for name, weight in head.state_dict().items()}
        if self.has_own_network:
            tensors |= {MODEL + name: weight for name, weight in self.learner.model.network.named_parameters()}
            tensors |= {OPTIMISER + name: tensor for name, tensor in self.learner.optimizer_tensors().items()}
            tensors[STEPS] = torch.tensor(self.learner.steps_done)
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)

    def load(self, path: Path) -> None:
        """Loads what `save` wrote."""
        tensors = load_file(path)

        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}

        assert self.learner.value_head is not None
        self.learner.value_head.load_state_dict(part(HEAD))
        if self.has_own_network:
            self.learner.model.network.load_state_dict(part(MODEL), strict=False)
            self.learner.restore_optimizer(part(OPTIMISER))
            self.learner.steps_done = int(tensors[STEPS])
