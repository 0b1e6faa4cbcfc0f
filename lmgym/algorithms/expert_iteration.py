"""Expert iteration: sample, keep what succeeded, imitate it, and sample again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmgym.advantages import best_of_group
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.imitation import Imitation, ImitationConfig
from lmgym.learning.batch import Batch
from lmgym.learning.first_weights import FirstWeights
from lmgym.learning.learner import LearnerSettings
from lmgym.runs.checkpoint import Companion


@dataclass
class ExpertIterationConfig(ImitationConfig):
    """Expert iteration, as in RAFT, best-of-n and, with --restart, STaR."""

    keep: int = 0
    """Imitate the best so many of each group that earned anything; 0 is all that did."""
    restart: bool = False
    """Learn from the first model again in each iteration, as STaR does, over --updates_per_iteration of some dozens."""


class ExpertIteration(Imitation):
    """Supervised learning on one's own successes (https://arxiv.org/abs/2203.14465, https://arxiv.org/abs/2304.06767)."""

    Config: ClassVar[type[RLConfig]] = ExpertIterationConfig
    config: ExpertIterationConfig

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.first = FirstWeights(self.learner) if self.config.restart else None

    def _learner_settings(self) -> LearnerSettings:
        """With a restart the schedule falls over one iteration, not over the run."""
        settings = super()._learner_settings()
        return replace(settings, total_steps=self.config.updates_per_iteration) if self.config.restart else settings

    def continue_schedule(self, factor: float) -> None:
        """With a restart every iteration has a schedule of its own, which a longer run does not change."""
        if not self.config.restart:
            super().continue_schedule(factor)

    def update_policy(self) -> dict[str, float]:
        """Goes back to the first model, where that is asked for, and imitates from there."""
        if self.first is not None:
            self.first.restore()
        return super().update_policy()

    def advantages(self, batch: Batch) -> Tensor:
        """1 for what is kept, 0 for the rest."""
        kept = best_of_group(batch.returns, batch.group, self.config.keep or len(batch), batch.seed)
        return batch.at_every_token(kept)

    def learnable(self, batch: Batch) -> Batch:
        """Only what is kept, and averaged as if there had been nothing else."""
        return batch.select(torch.nonzero(batch.advantages.sum(dim=1))[:, 0]).recounted()

    def companions(self) -> dict[str, Companion]:
        """The first model goes into the checkpoint, or a resumed run could not go back to it."""
        return super().companions() | ({"first": self.first} if self.first is not None else {})
