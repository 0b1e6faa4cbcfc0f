"""REINFORCE: discounted per-step returns over a baseline (Williams, 1992)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lmgym.advantages import batch_baseline, discounted_returns, group_baseline
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.losses import per_token, policy_gradient


@dataclass
class ReinforceConfig(RLConfig):
    """REINFORCE: every token carries the discounted return of its own step, less a baseline."""

    corrects_old_episodes: ClassVar[bool] = False

    discount: float = 1.0
    """How much a reward one step later is worth."""
    baseline: Literal["group", "batch", "none"] = "group"
    """What a return is compared with: its group's mean, the batch's mean, or nothing."""

    def check(self) -> None:
        """Also refuses what would teach nothing, or the wrong thing, in silence."""
        super().check()
        alone = self.group_size == 1 or (self.replay_episodes and self.balanced_replay)
        if self.baseline == "group" and alone:
            raise UserError(
                "an episode that is alone in its group has no advantage over it: use --baseline batch with "
                "--group_size 1 or --balanced_replay."
            )
        if not self.corrects_old_episodes and (self.replay_episodes or self.updates_per_iteration > 1):
            raise UserError(
                "reinforce has no importance ratio, so it can learn only once from fresh episodes: use "
                "reinforce-stable for --replay_episodes or --updates_per_iteration."
            )
        if self.discount > 1:
            raise UserError(f"--discount is {self.discount}: it must be from 0 to 1.")


class Reinforce(RLAlgorithm):
    """The plain policy gradient: no reference, no ratio."""

    Config: ClassVar[type[RLConfig]] = ReinforceConfig
    config: ReinforceConfig

    def advantages(self, batch: Batch) -> Tensor:
        """Each step's return over the baseline, on each of its tokens."""
        returns = discounted_returns(batch.rewards, self.config.discount)
        if self.config.baseline == "group":
            returns = returns - group_baseline(returns, batch.step_count, batch.group)
        elif self.config.baseline == "batch":
            returns = returns - batch_baseline(returns, batch.step_count)
        return batch.at_tokens(returns)

    def loss(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """The mean over tokens of −advantage · log-probability."""
        return per_token(policy_gradient(logprobs, batch.advantages), batch)

    def rows_to_learn(self, batch: Batch) -> Tensor:
        """Episodes without any advantage add nothing to this loss, so they are not computed."""
        return torch.nonzero(batch.advantages.abs().sum(dim=1))[:, 0]
