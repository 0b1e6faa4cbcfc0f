"""DAPO: GRPO with clip-higher, a token-mean loss, dynamic sampling and overlong shaping (Yu et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmgym.advantages import over_group, overlong_penalty
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
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.losses import clipped_surrogate, per_token
from lmgym.models.token_scorer import Scores


@dataclass
class DAPOConfig(RLConfig):
    """DAPO: clip-higher, token-level loss, dynamic sampling and overlong reward shaping."""

    compares_groups: ClassVar[bool] = True
    is_off_policy: ClassVar[bool] = True

    clip_low: float = 0.2
    """Lower PPO clip: with a negative advantage, ratios below 1 − clip_low get no gradient."""
    clip_high: float = 0.28
    """Upper PPO clip, above the lower one so that rare tokens can become likely (clip-higher)."""
    soft_length: int = 0
    """Overlong shaping: from this many action tokens on, an episode loses reward linearly."""
    hard_length: int = 0
    """Overlong shaping: from this many action tokens on, an episode loses 1 reward; 0: no shaping."""
    norm: AdvantageNorm = AdvantageNorm("group")
    importance: TruncatedImportanceSampling = TruncatedImportanceSampling(tis_cap=2.0)
    kl: KL = KL(0.0)
    entropy: EntropyBonus = EntropyBonus()
    group_filter: GroupFilter = GroupFilter(filter_groups=True, max_resample_rounds=3)
    update_limit: UpdateLimit = UpdateLimit()

    def check(self) -> None:
        """Also refuses length limits in the wrong order."""
        super().check()
        if self.soft_length and self.soft_length >= self.hard_length:
            raise UserError("--soft_length must be below --hard_length.")


class DAPO(RLAlgorithm):
    """Samples until enough groups are informative and learns from these alone (https://arxiv.org/abs/2503.14476)."""

    Config: ClassVar[type[RLConfig]] = DAPOConfig
    config: DAPOConfig

    def advantages(self, batch: Batch) -> Tensor:
        """The return with overlong shaping, minus the group's mean, divided by the group's standard deviation."""
        config, returns = self.config, batch.returns
        if config.hard_length:
            lengths = batch.mask.sum(dim=1).float()
            returns = returns + overlong_penalty(lengths, config.soft_length, config.hard_length)
        advantages = batch.at_every_token(over_group(returns, batch.group))
        return config.norm.apply(advantages, batch, config.kl.to_go(batch))

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """PPO's clipped surrogate, token by token."""
        config, cap = self.config, self.config.importance.tis_cap
        values = clipped_surrogate(scores.logprobs, batch, config.clip_low, config.clip_high, cap)
        values = values + config.kl.penalty(scores, batch, cap) + config.entropy.penalty(scores)
        return per_token(values, batch)
