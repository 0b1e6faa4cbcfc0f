"""Online DPO: in each group the best episode is preferred over the worst (Guo et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmgym.advantages import best_against_worst
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.parts import KLPenalty
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.losses import preference
from lmgym.models.token_scorer import Scores


@dataclass
class OnlineDPOConfig(RLConfig):
    """DPO on pairs of episodes that the current policy sampled; --kl_coeff is the β of DPO."""

    compares_groups: ClassVar[bool] = True
    is_off_policy: ClassVar[bool] = True

    kl: KLPenalty = KLPenalty(kl_coeff=0.1)

    def check(self) -> None:
        """Also refuses a β of 0."""
        super().check()
        if not self.kl.kl_coeff:
            raise UserError("--kl_coeff is the β of dpo: it must be above 0.")


class OnlineDPO(RLAlgorithm):
    """One pair of each group whose returns differ (https://arxiv.org/abs/2402.04792)."""

    Config: ClassVar[type[RLConfig]] = OnlineDPOConfig
    config: OnlineDPOConfig
    compares_episodes: ClassVar[bool] = True

    def advantages(self, batch: Batch) -> Tensor:
        """+1 for the preferred episode, −1 for the other."""
        return batch.at_every_token(best_against_worst(batch.returns, batch.group, batch.seed))

    def select_for_update(self, batch: Batch) -> Batch:
        """Only the pairs, which alone count in the average."""
        return batch.select(torch.nonzero(batch.advantages.sum(dim=1))[:, 0]).recounted()

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """−log σ(β · margin), the mean over pairs."""
        return preference(scores.logprobs, batch, self.config.kl.kl_coeff)
