"""SAPO: a sigmoid gate in place of the clip (Gao et al., 2025)."""

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
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.losses import old_logprobs, per_episode, soft_gated, token_ratios
from lmgym.models.token_scorer import Scores


@dataclass
class SAPOConfig(RLConfig):
    """SAPO: the gradient of a token decays smoothly with the distance of its ratio from 1."""

    compares_groups: ClassVar[bool] = True
    is_off_policy: ClassVar[bool] = True

    temperature_positive: float = 1.0
    """How fast the gate closes for tokens with a positive advantage."""
    temperature_negative: float = 1.05
    """How fast the gate closes for tokens with a negative advantage."""
    norm: AdvantageNorm = AdvantageNorm("group")
    importance: TruncatedImportanceSampling = TruncatedImportanceSampling(tis_cap=2.0)
    kl: KL = KL(0.0)
    entropy: EntropyBonus = EntropyBonus()
    group_filter: GroupFilter = GroupFilter()
    update_limit: UpdateLimit = UpdateLimit()

    def check(self) -> None:
        """Also refuses a gate that never closes."""
        super().check()
        if not (self.temperature_positive and self.temperature_negative):
            raise UserError("--temperature_positive and --temperature_negative must be above 0.")


class SAPO(RLAlgorithm):
    """On policy its gradient is GRPO's (https://arxiv.org/abs/2511.20347). Average: per episode."""

    Config: ClassVar[type[RLConfig]] = SAPOConfig
    config: SAPOConfig

    def advantages(self, batch: Batch) -> Tensor:
        """The return minus the group's mean, divided by the group's standard deviation."""
        config, returns = self.config, over_group(batch.returns, batch.group)
        return config.norm.apply(batch.at_every_token(returns), batch, config.kl.to_go(batch))

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """A sigmoid of the ratio."""
        config, old = self.config, old_logprobs(scores.logprobs, batch)
        ratios = token_ratios(scores.logprobs, old)
        values = soft_gated(ratios, batch.advantages, config.temperature_positive, config.temperature_negative)
        values = config.importance.weights(old, batch) * values
        values = values + config.kl.penalty(scores, batch, config.importance.tis_cap) + config.entropy.penalty(scores)
        return per_episode(values, batch)
