"""Online DPO: in each group the best episode is preferred to the worst, and the pair is learnt (Guo et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmgym.advantages import best_against_worst
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.with_reference import WithReference, WithReferenceConfig
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.losses import preference


@dataclass
class OnlineDPOConfig(WithReferenceConfig):
    """DPO on pairs of fresh episodes."""

    kl_coeff: float = 0.1
    """The β of DPO: how strongly the policy is held to the reference while it tells good from bad."""

    def check(self) -> None:
        """Also refuses what leaves nothing to compare."""
        super().check()
        if self.parts_groups or not self.kl_coeff:
            raise UserError(
                "dpo compares episodes of a group: it needs --group_size 2 or more, whole groups if it replays, and "
                "--kl_coeff above 0."
            )


class OnlineDPO(WithReference):
    """The policy's own fresh samples make the pairs, one of each group (https://arxiv.org/abs/2402.04792)."""

    Config: ClassVar[type[RLConfig]] = OnlineDPOConfig
    config: OnlineDPOConfig
    compares_episodes: ClassVar[bool] = True

    def advantages(self, batch: Batch) -> Tensor:
        """+1 for the one that is preferred, −1 for the other."""
        return batch.at_every_token(best_against_worst(batch.returns, batch.group, batch.seed))

    def learnable(self, batch: Batch) -> Batch:
        """Only the pairs, and as if there had been nothing else."""
        return batch.select(torch.nonzero(batch.advantages.sum(dim=1))[:, 0]).recounted()

    def loss(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """−log σ of how much more the better one has gained on the reference, the mean over pairs."""
        gained = ((logprobs - batch.reference_logprobs) * batch.mask).sum(dim=1)
        sign = batch.advantages.sum(dim=1).sign()
        pair = batch.group.unique(return_inverse=True)[1]
        margins = gained.new_zeros(int(pair.max()) + 1).index_add_(0, pair, sign * gained)
        return preference(margins, self.config.kl_coeff).sum() / (batch.total_episodes / 2)
