"""RLOO: REINFORCE with a leave-one-out baseline (Ahmadian et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmgym.advantages import leave_one_out
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.parts import KL, EntropyBonus, GroupFilter, TruncatedImportanceSampling, UpdateLimit
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.learning.batch import Batch
from lmgym.losses import per_constant, weighted_policy_gradient
from lmgym.models.token_scorer import Scores


@dataclass
class RLOOConfig(RLConfig):
    """RLOO: the baseline of an episode is the mean return of the others of its group."""

    compares_groups: ClassVar[bool] = True

    importance: TruncatedImportanceSampling = TruncatedImportanceSampling(0.0)
    kl: KL = KL(0.0)
    entropy: EntropyBonus = EntropyBonus()
    group_filter: GroupFilter = GroupFilter()
    update_limit: UpdateLimit = UpdateLimit()


class RLOO(RLAlgorithm):
    """Unbiased: the baseline is independent of the episode (https://arxiv.org/abs/2402.14740). Average: constant."""

    Config: ClassVar[type[RLConfig]] = RLOOConfig
    config: RLOOConfig

    def advantages(self, batch: Batch) -> Tensor:
        """The return minus the mean of the others."""
        advantages = leave_one_out(batch.returns, batch.group)
        return batch.at_every_token(advantages) - self.config.kl.to_go(batch)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """The importance-weighted policy gradient, the KL and the entropy bonus."""
        config, cap = self.config, self.config.importance.tis_cap
        values = weighted_policy_gradient(scores.logprobs, batch, cap)
        values = values + config.kl.penalty(scores, batch, cap) + config.entropy.penalty(scores)
        return per_constant(values, batch)
