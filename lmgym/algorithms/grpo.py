"""GRPO: PPO's clipped ratio without a critic; the group is the baseline (Shao et al., 2024)."""

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
from lmgym.losses import AVERAGES, Averaging, clipped_surrogate
from lmgym.models.token_scorer import Scores


@dataclass
class GRPOConfig(RLConfig):
    """GRPO: returns standardised within their group, PPO's clipped surrogate, the mean over episodes."""

    compares_groups: ClassVar[bool] = True
    is_off_policy: ClassVar[bool] = True

    clip_low: float = 0.2
    """Lower PPO clip: with a negative advantage, ratios below 1 − clip_low get no gradient."""
    clip_high: float = 0.2
    """Upper PPO clip: with a positive advantage, ratios above 1 + clip_high get no gradient."""
    averaging: Averaging = "episode"
    """Loss average. token: mean over tokens; episode: mean of episode means; constant: divide by maximum length."""
    norm: AdvantageNorm = AdvantageNorm("group")
    importance: TruncatedImportanceSampling = TruncatedImportanceSampling(tis_cap=2.0)
    kl: KL = KL(0.0)
    entropy: EntropyBonus = EntropyBonus()
    group_filter: GroupFilter = GroupFilter()
    update_limit: UpdateLimit = UpdateLimit()


class GRPO(RLAlgorithm):
    """Group relative policy optimisation (https://arxiv.org/abs/2402.03300).

    The group mean contains the episode itself, which shrinks the update by one part in the group's size. Division by
    the sampled deviation biases it towards problems with a success rate near 0 or 1.
    """

    Config: ClassVar[type[RLConfig]] = GRPOConfig
    config: GRPOConfig

    def advantages(self, batch: Batch) -> Tensor:
        """The return minus the group's mean, divided by the group's standard deviation."""
        config, returns = self.config, over_group(batch.returns, batch.group)
        return config.norm.apply(batch.at_every_token(returns), batch, config.kl.to_go(batch))

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """PPO's clipped surrogate, token by token."""
        config, cap = self.config, self.config.importance.tis_cap
        values = clipped_surrogate(scores.logprobs, batch, config.clip_low, config.clip_high, cap)
        values = values + config.kl.penalty(scores, batch, cap) + config.entropy.penalty(scores)
        return AVERAGES[config.averaging](values, batch)
