"""REINFORCE++: KL in the reward, advantages normalised over the whole batch, and PPO's clip (Hu, 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from lmgym.advantages import discounted_returns, group_baseline
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.parts import KL, AdvantageNorm, EntropyBonus, TruncatedImportanceSampling
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.losses import clipped_surrogate, per_token
from lmgym.models.token_scorer import Scores


@dataclass
class ReinforcePPConfig(RLConfig):
    """REINFORCE++; with --baseline group and --kl_place loss it is REINFORCE++-baseline."""

    is_off_policy: ClassVar[bool] = True

    discount: float = 1.0
    """Discount factor γ per step of the environment."""
    baseline: Literal["none", "group"] = "none"
    """none: REINFORCE++; group: subtract the mean return of the group (REINFORCE++-baseline)."""
    clip: float = 0.2
    """PPO clip range: ratios outside of 1 ± clip get no gradient in the advantage's direction."""
    norm: AdvantageNorm = AdvantageNorm("batch")
    kl: KL = KL(kl_coeff=0.001, kl_place="reward")
    entropy: EntropyBonus = EntropyBonus()
    importance: TruncatedImportanceSampling = TruncatedImportanceSampling(tis_cap=2.0)

    def check(self) -> None:
        """Also refuses an impossible discount."""
        super().check()
        if self.discount > 1:
            raise UserError(f"--discount is {self.discount}: it must be from 0 to 1.")


class ReinforcePP(RLAlgorithm):
    """Neither critic nor group (https://arxiv.org/abs/2501.03262). Average: per token."""

    Config: ClassVar[type[RLConfig]] = ReinforcePPConfig
    config: ReinforcePPConfig

    def advantages(self, batch: Batch) -> Tensor:
        """Returns minus the KL to go, standardised over all action tokens of the batch."""
        config, returns = self.config, discounted_returns(batch.rewards, self.config.discount)
        if config.baseline == "group":
            returns = returns - group_baseline(returns, batch.step_count, batch.group)
        return config.norm.apply(batch.at_tokens(returns), batch, config.kl.to_go(batch, config.discount, "k1"))

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """PPO's clipped surrogate, token by token."""
        config, cap = self.config, self.config.importance.tis_cap
        values = clipped_surrogate(scores.logprobs, batch, config.clip, config.clip, cap)
        values = values + config.kl.penalty(scores, batch, cap) + config.entropy.penalty(scores)
        return per_token(values, batch)
