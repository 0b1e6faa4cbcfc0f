"""REINFORCE with every part to choose from: discounted per-step returns minus a baseline (Williams, 1992)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from lmgym.advantages import batch_baseline, discounted_returns, group_baseline
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.greedy_baseline import check_greedy_baseline, greedy_returns
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
from lmgym.losses import AVERAGES, Averaging, weighted_policy_gradient
from lmgym.models.token_scorer import Scores

Baseline = Literal["group", "batch", "running", "greedy", "none"]


@dataclass
class ReinforceConfig(RLConfig):
    """REINFORCE: every token gets the discounted return of its own step, minus a baseline."""

    discount: float = 1.0
    """Discount factor γ per step of the environment."""
    baseline: Baseline = "group"
    """Mean return of the group, of all steps of the batch, of whole episodes of earlier iterations (running), the
    return of a greedy episode, or none."""
    averaging: Averaging = "token"
    """Loss average. token: mean over tokens; episode: mean of episode means; constant: divide by maximum length."""
    norm: AdvantageNorm = AdvantageNorm("none")
    importance: TruncatedImportanceSampling = TruncatedImportanceSampling(0.0)
    kl: KL = KL(0.0)
    entropy: EntropyBonus = EntropyBonus()
    group_filter: GroupFilter = GroupFilter()
    update_limit: UpdateLimit = UpdateLimit()

    def check(self) -> None:
        """Also refuses a baseline that would leave nothing to learn."""
        super().check()
        if self.baseline == "greedy":
            check_greedy_baseline(self)
        if self.discount > 1:
            raise UserError(f"--discount is {self.discount}: it must be from 0 to 1.")


class Reinforce(RLAlgorithm):
    """Advantage: return − baseline. Objective: −weight · advantage · log-prob."""

    Config: ClassVar[type[RLConfig]] = ReinforceConfig
    config: ReinforceConfig
    greedy_returns: Tensor
    """[problems] the return of a greedy episode of each problem of this iteration."""

    def prepare(self, batch: Batch) -> Batch:
        """Samples the greedy episodes, where they are the baseline."""
        if self.config.baseline == "greedy":
            self.greedy_returns = greedy_returns(self, self.config.discount)
        return batch

    def advantages(self, batch: Batch) -> Tensor:
        """Each step's return minus the baseline, on each of its tokens."""
        config, returns = self.config, discounted_returns(batch.rewards, self.config.discount)
        # A greedy episode that failed has no return, and its group no advantage.
        advantages = batch.at_tokens((returns - BASELINES[config.baseline](self, returns, batch)).nan_to_num())
        return config.norm.apply(advantages, batch, config.kl.to_go(batch, config.discount))

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """The importance-weighted policy gradient, the KL and the entropy bonus."""
        config, cap = self.config, self.config.importance.tis_cap
        values = weighted_policy_gradient(scores.logprobs, batch, cap)
        values = values + config.kl.penalty(scores, batch, cap) + config.entropy.penalty(scores)
        return AVERAGES[config.averaging](values, batch)


BASELINES: dict[Baseline, Callable[[Reinforce, Tensor, Batch], Tensor | float]] = {
    "none": lambda algorithm, returns, batch: 0.0,
    "group": lambda algorithm, returns, batch: group_baseline(returns, batch.step_count, batch.group),
    "batch": lambda algorithm, returns, batch: batch_baseline(returns, batch.step_count),
    "running": lambda algorithm, returns, batch: algorithm.state.get("mean_reward", 0.0),
    "greedy": lambda algorithm, returns, batch: algorithm.greedy_returns[batch.group][:, None],
}
"""All but `batch` and `group` are independent of the episode they are subtracted from, so they add no bias."""
