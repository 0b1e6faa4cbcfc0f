"""Supervised fine-tuning on worked solutions: a baseline to compare with, and a warm start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.imitation import Imitation, ImitationConfig
from lmgym.learning.batch import Batch
from lmgym.learning.learner import LearnerSettings
from lmgym.models.distribution import WHOLE
from lmgym.policies.expert_policy import ExpertPolicy


@dataclass
class SFTConfig(ImitationConfig):
    """SFT: the same loop, but the solutions that are given do the acting."""

    problems_per_iteration: int = 64
    """Worked solutions per optimiser step."""
    group_size: int = 1
    """A solution is always the same, so once is enough."""


class SFT(Imitation):
    """Maximum likelihood of worked solutions, at temperature 1; its reward says whether those are right themselves."""

    Config: ClassVar[type[RLConfig]] = SFTConfig
    config: SFTConfig

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.actor = ExpertPolicy(self.policy)

    def _learner_settings(self) -> LearnerSettings:
        """The likelihood of a solution is that of the model itself, whatever temperature and cut it samples with."""
        return replace(super()._learner_settings(), distribution=WHOLE)

    def advantages(self, batch: Batch) -> Tensor:
        """1 for every token that the policy would have had to choose."""
        return batch.mask.float()
