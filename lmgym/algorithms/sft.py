"""Supervised fine-tuning on worked solutions: a baseline to compare with, and a warm start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.imitation import Imitation, ImitationConfig
from lmgym.learning.batch import Batch
from lmgym.policies.demonstrator import Demonstrator


@dataclass
class SFTConfig(ImitationConfig):
    """SFT: the same loop, but the solutions that are given do the acting."""

    problems_per_iteration: int = 64
    """Worked solutions per optimiser step."""
    group_size: int = 1
    """A solution is always the same, so once is enough."""


class SFT(Imitation):
    """Imitates worked solutions; the reward of an iteration says whether the solutions themselves are right."""

    Config: ClassVar[type[RLConfig]] = SFTConfig
    config: SFTConfig

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.actor = Demonstrator(self.policy)

    def advantages(self, batch: Batch) -> Tensor:
        """1 for every token that the policy would have had to choose."""
        return batch.mask.float()
