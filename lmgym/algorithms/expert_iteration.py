"""Expert iteration: sample, keep what succeeded, imitate it, and begin again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmgym.advantages import best_of_group
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.imitation import Imitation, ImitationConfig
from lmgym.learning.batch import Batch


@dataclass
class ExpertIterationConfig(ImitationConfig):
    """Expert iteration, as in RAFT and best-of-n; unlike STaR it goes on from the last model, not from the first."""

    keep: int = 0
    """Imitate the best so many of each group that earned anything; 0 is all that did."""


class ExpertIteration(Imitation):
    """Supervised learning on one's own successes (https://arxiv.org/abs/2203.14465, https://arxiv.org/abs/2304.06767)."""

    Config: ClassVar[type[RLConfig]] = ExpertIterationConfig
    config: ExpertIterationConfig

    def advantages(self, batch: Batch) -> Tensor:
        """1 for what is kept, 0 for the rest."""
        return batch.at_every_token(best_of_group(batch.returns, batch.group, self.config.keep or len(batch)))

    def learnable(self, batch: Batch) -> Batch:
        """Only what is kept, and averaged as if there had been nothing else."""
        return batch.select(torch.nonzero(batch.advantages.sum(dim=1))[:, 0]).recounted()
