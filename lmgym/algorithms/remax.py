"""ReMax: REINFORCE with the return of the policy's own greedy episode as the baseline (Li et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.greedy_baseline import check_greedy_baseline, greedy_returns
from lmgym.algorithms.parts import KLPenalty, TruncatedImportanceSampling
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.learning.batch import Batch
from lmgym.losses import per_token, weighted_policy_gradient
from lmgym.models.token_scorer import Scores


@dataclass
class ReMaxConfig(RLConfig):
    """ReMax: one sampled and one greedy episode per problem."""

    problems_per_iteration: int = 64
    """Problems sampled per iteration; each costs one greedy episode more."""
    group_size: int = 1
    """Episodes sampled per problem."""
    kl: KLPenalty = KLPenalty(0.0)
    importance: TruncatedImportanceSampling = TruncatedImportanceSampling(0.0)

    def check(self) -> None:
        """Also refuses episodes of problems that have no greedy episode in this iteration."""
        super().check()
        check_greedy_baseline(self)


class ReMax(RLAlgorithm):
    """Advantage: return − greedy return of the same problem (https://arxiv.org/abs/2310.10505). Average: per token."""

    Config: ClassVar[type[RLConfig]] = ReMaxConfig
    config: ReMaxConfig
    greedy_returns: Tensor
    """[groups] the return of a greedy episode of each group of this iteration."""

    def prepare(self, batch: Batch) -> Batch:
        """Samples the greedy episodes."""
        self.greedy_returns = greedy_returns(self)
        return batch

    def advantages(self, batch: Batch) -> Tensor:
        """The return minus that of the greedy episode; 0 if that one failed."""
        return batch.at_every_token((batch.returns - self.greedy_returns[batch.group]).nan_to_num())

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """The importance-weighted policy gradient and the KL penalty."""
        config, cap = self.config, self.config.importance.tis_cap
        values = weighted_policy_gradient(scores.logprobs, batch, cap)
        return per_token(values + config.kl.penalty(scores, batch, cap), batch)
