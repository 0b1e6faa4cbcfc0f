"""Dr. GRPO: GRPO without its two biased divisions (Liu et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmgym.advantages import over_group
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.parts import KL, EntropyBonus, GroupFilter, TruncatedImportanceSampling, UpdateLimit
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.learning.batch import Batch
from lmgym.losses import clipped_surrogate, per_constant
from lmgym.models.token_scorer import Scores


@dataclass
class DrGRPOConfig(RLConfig):
    """Dr. GRPO: no division by the group's deviation, and none by the episode's length."""

    compares_groups: ClassVar[bool] = True
    is_off_policy: ClassVar[bool] = True

    clip_low: float = 0.2
    """Lower PPO clip: with a negative advantage, ratios below 1 − clip_low get no gradient."""
    clip_high: float = 0.2
    """Upper PPO clip: with a positive advantage, ratios above 1 + clip_high get no gradient."""
    importance: TruncatedImportanceSampling = TruncatedImportanceSampling(tis_cap=2.0)
    kl: KL = KL(0.0)
    entropy: EntropyBonus = EntropyBonus()
    group_filter: GroupFilter = GroupFilter()
    update_limit: UpdateLimit = UpdateLimit()


class DrGRPO(RLAlgorithm):
    """GRPO done right (https://arxiv.org/abs/2503.20783). Average: constant."""

    Config: ClassVar[type[RLConfig]] = DrGRPOConfig
    config: DrGRPOConfig

    def advantages(self, batch: Batch) -> Tensor:
        """The return minus the group's mean."""
        returns = over_group(batch.returns, batch.group)
        return batch.at_every_token(returns) - self.config.kl.to_go(batch)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """PPO's clipped surrogate, token by token."""
        config, cap = self.config, self.config.importance.tis_cap
        values = clipped_surrogate(scores.logprobs, batch, config.clip_low, config.clip_high, cap)
        values = values + config.kl.penalty(scores, batch, cap) + config.entropy.penalty(scores)
        return per_constant(values, batch)
