"""Supervised fine-tuning on worked solutions: a baseline to compare with, and a warm start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.learning.batch import Batch
from lmgym.losses import AVERAGES, Averaging, policy_gradient
from lmgym.policies.demonstrator import Demonstrator


@dataclass
class SFTConfig(RLConfig):
    """SFT: the same loop, but the solutions that are given do the acting."""

    problems_per_iteration: int = 64
    """Worked solutions per optimiser step."""
    group_size: int = 1
    """A solution is always the same, so once is enough."""
    averaging: Averaging = "token"
    """token: all tokens weigh alike; episode: all episodes do; constant: a sum over a fixed length."""


class SFT(RLAlgorithm):
    """Imitates worked solutions; the reward of an iteration says whether the solutions themselves are right."""

    Config: ClassVar[type[RLConfig]] = SFTConfig
    config: SFTConfig

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.actor = Demonstrator(self.policy)

    def advantages(self, batch: Batch) -> Tensor:
        """1 for every token that the policy would have had to choose."""
        return batch.mask.float()

    def loss(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """The mean of −log-probability."""
        return AVERAGES[self.config.averaging](policy_gradient(logprobs, batch.advantages), batch)
