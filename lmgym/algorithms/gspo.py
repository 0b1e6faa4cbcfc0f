"""GSPO: GRPO with sequence-level ratios and clip (Zheng et al., 2025)."""

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
from lmgym.losses import clipped, old_logprobs, per_episode, sequence_ratios
from lmgym.models.token_scorer import Scores


@dataclass
class GSPOConfig(RLConfig):
    """GSPO: the geometric mean of an episode's ratios moves little, so its clip range is narrow."""

    compares_groups: ClassVar[bool] = True
    is_off_policy: ClassVar[bool] = True

    clip_low: float = 3e-4
    """Lower clip: with a negative advantage, sequence ratios below 1 − clip_low get no gradient."""
    clip_high: float = 4e-4
    """Upper clip: with a positive advantage, sequence ratios above 1 + clip_high get no gradient."""
    norm: AdvantageNorm = AdvantageNorm("group")
    importance: TruncatedImportanceSampling = TruncatedImportanceSampling(tis_cap=2.0)
    kl: KL = KL(0.0)
    entropy: EntropyBonus = EntropyBonus()
    group_filter: GroupFilter = GroupFilter()
    update_limit: UpdateLimit = UpdateLimit()


class GSPO(RLAlgorithm):
    """Ratio and clip are of whole episodes, as the reward is (https://arxiv.org/abs/2507.18071). Average: per episode.

    The correction for the sampler's rounding is still token by token.
    """

    Config: ClassVar[type[RLConfig]] = GSPOConfig
    config: GSPOConfig

    def advantages(self, batch: Batch) -> Tensor:
        """The return minus the group's mean, divided by the group's standard deviation."""
        config, returns = self.config, over_group(batch.returns, batch.group)
        return config.norm.apply(batch.at_every_token(returns), batch, config.kl.to_go(batch))

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """PPO's clipped surrogate of sequence ratios."""
        config, old = self.config, old_logprobs(scores.logprobs, batch)
        ratios = sequence_ratios(scores.logprobs, old, batch.mask)
        values = clipped(ratios, batch.advantages, config.clip_low, config.clip_high)
        values = config.importance.weights(old, batch) * values
        values = values + config.kl.penalty(scores, batch, config.importance.tis_cap) + config.entropy.penalty(scores)
        return per_episode(values, batch)
