"""CISPO: the importance weight is clipped, not the gradient (MiniMax, 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmgym.advantages import over_group
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.parts import (
    KL,
    AdvantageNorm,
    EntropyBonus,
    GroupFilter,
    TruncatedImportanceSampling,
    UpdateLimit,
)
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.learning.batch import Batch
from lmgym.losses import per_token, weighted_policy_gradient
from lmgym.models.token_scorer import Scores


@dataclass
class CISPOConfig(RLConfig):
    """CISPO: REINFORCE with GRPO's advantages and truncated importance weights."""

    compares_groups: ClassVar[bool] = True

    norm: AdvantageNorm = AdvantageNorm("group")
    importance: TruncatedImportanceSampling = TruncatedImportanceSampling(tis_cap=5.0)
    kl: KL = KL(0.0)
    entropy: EntropyBonus = EntropyBonus()
    group_filter: GroupFilter = GroupFilter()
    update_limit: UpdateLimit = UpdateLimit()


class CISPO(RLAlgorithm):
    """Bounds a token's weight where PPO drops its gradient (https://arxiv.org/abs/2506.13585). Average: per token."""

    Config: ClassVar[type[RLConfig]] = CISPOConfig
    config: CISPOConfig

    def advantages(self, batch: Batch) -> Tensor:
        """The return minus the group's mean, divided by the group's standard deviation."""
        config, returns = self.config, over_group(batch.returns, batch.group)
        return config.norm.apply(batch.at_every_token(returns), batch, config.kl.to_go(batch))

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """The importance-weighted policy gradient."""
        config, cap = self.config, self.config.importance.tis_cap
        values = weighted_policy_gradient(scores.logprobs, batch, cap)
        values = values + config.kl.penalty(scores, batch, cap) + config.entropy.penalty(scores)
        return per_token(values, batch)
