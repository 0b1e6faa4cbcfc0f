"""REINFORCE made stable: a KL penalty to a reference model, and truncated importance sampling for stale episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from lmgym.advantages import batch_baseline, group_baseline, undiscounted_returns
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.parts import KLPenalty, TruncatedImportanceSampling
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.learning.batch import Batch
from lmgym.losses import per_token, weighted_policy_gradient
from lmgym.models.token_scorer import Scores


@dataclass
class ReinforceStableConfig(RLConfig):
    """REINFORCE with a reference model, a KL penalty with the exact gradient, and truncated importance sampling."""

    baseline: Literal["group", "batch"] = "group"
    """Mean return of the group or of the whole batch, subtracted from each return."""
    kl: KLPenalty = KLPenalty(kl_coeff=0.01)
    importance: TruncatedImportanceSampling = TruncatedImportanceSampling(tis_cap=2.0)


class ReinforceStable(RLAlgorithm):
    """Advantage: return − baseline. Objective: weight · (−advantage · log-prob + KL). Average: per token."""

    Config: ClassVar[type[RLConfig]] = ReinforceStableConfig
    config: ReinforceStableConfig

    def advantages(self, batch: Batch) -> Tensor:
        """Each step's return minus the mean of the group or the batch, on each of its tokens."""
        returns = undiscounted_returns(batch.rewards)
        if self.config.baseline == "group":
            return batch.at_tokens(returns - group_baseline(returns, batch.step_count, batch.group))
        return batch.at_tokens(returns - batch_baseline(returns, batch.step_count))

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """The importance-weighted policy gradient and the KL penalty."""
        config, cap = self.config, self.config.importance.tis_cap
        values = weighted_policy_gradient(scores.logprobs, batch, cap)
        return per_token(values + config.kl.penalty(scores, batch, cap), batch)
