"""MaxRL: a policy gradient that approaches the gradient of the log success rate (Tajwar et al., 2026)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmgym.advantages import over_success_rate
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.parts import KL, EntropyBonus, GroupFilter, TruncatedImportanceSampling, UpdateLimit
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.losses import per_constant, weighted_policy_gradient
from lmgym.models.token_scorer import Scores


@dataclass
class MaxRLConfig(RLConfig):
    """MaxRL: advantages divided by the mean return of the group; for rewards of 0 or 1."""

    compares_groups: ClassVar[bool] = True

    importance: TruncatedImportanceSampling = TruncatedImportanceSampling(0.0)
    kl: KL = KL(0.0)
    entropy: EntropyBonus = EntropyBonus()
    group_filter: GroupFilter = GroupFilter()
    update_limit: UpdateLimit = UpdateLimit()


class MaxRL(RLAlgorithm):
    """The lower the success rate, the larger the advantage of a success (https://arxiv.org/abs/2602.02710)."""

    Config: ClassVar[type[RLConfig]] = MaxRLConfig
    config: MaxRLConfig

    def advantages(self, batch: Batch) -> Tensor:
        """(r − r̄) / r̄ within the group; undefined for negative rewards."""
        if bool((batch.returns < 0).any()):
            raise UserError("maxrl needs rewards that are not negative; this environment gives some that are.")
        advantages = over_success_rate(batch.returns, batch.group)
        return batch.at_every_token(advantages) - self.config.kl.to_go(batch)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """The importance-weighted policy gradient, the KL and the entropy bonus."""
        config, cap = self.config, self.config.importance.tis_cap
        values = weighted_policy_gradient(scores.logprobs, batch, cap)
        values = values + config.kl.penalty(scores, batch, cap) + config.entropy.penalty(scores)
        return per_constant(values, batch)
