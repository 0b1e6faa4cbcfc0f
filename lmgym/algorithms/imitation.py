"""What imitation shares: the loss is the mean of −log-probability of whatever is worth imitating."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.learning.batch import Batch
from lmgym.losses import AVERAGES, Averaging, policy_gradient


@dataclass
class ImitationConfig(RLConfig):
    """How imitated tokens become one number."""

    averaging: Averaging = "token"
    """token: all tokens weigh alike; episode: all episodes do; constant: a sum over a fixed length."""


class Imitation(RLAlgorithm):
    """A subclass says by its advantages what is imitated."""

    Config: ClassVar[type[RLConfig]] = ImitationConfig
    config: ImitationConfig

    def loss(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """The mean of −log-probability."""
        return AVERAGES[self.config.averaging](policy_gradient(logprobs, batch.advantages), batch)
