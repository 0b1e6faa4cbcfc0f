"""REINFORCE: discounted per-step returns over a baseline (Williams, 1992)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lmgym.advantages import batch_baseline, discounted_returns, group_baseline
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from lmgym.errors import UserError
from lmgym.evaluation.evaluation import play
from lmgym.learning.batch import Batch

RUNNING_DECAY = 0.9
"""How much of the running baseline an iteration keeps."""


@dataclass
class ReinforceConfig(PolicyGradientConfig):
    """REINFORCE: every token carries the discounted return of its own step, less a baseline."""

    discount: float = 1.0
    """How much a reward one step later is worth."""
    baseline: Literal["group", "batch", "running", "greedy", "none"] = "group"
    """What a return is compared with: the mean of its group, of the batch, of earlier batches, a greedy episode."""

    def check(self) -> None:
        """Also refuses what would teach nothing, or the wrong thing, in silence."""
        super().check()
        if self.baseline == "group" and self.parts_groups:
            raise UserError(
                "an episode that is alone in its group has no advantage over it: use --baseline batch with "
                "--group_size 1 or --balanced_replay."
            )
        if self.baseline == "greedy" and (self.replay_episodes or self.curriculum):
            raise UserError("a greedy baseline goes with neither --replay_episodes nor --curriculum.")
        if self.discount > 1:
            raise UserError(f"--discount is {self.discount}: it must be from 0 to 1.")


class Reinforce(PolicyGradient):
    """The plain policy gradient."""

    Config: ClassVar[type[RLConfig]] = ReinforceConfig
    config: ReinforceConfig
    greedy_returns: Tensor
    """[problems] what a greedy episode of each problem earned in this iteration."""

    def credit(self, batch: Batch) -> Tensor:
        """Each step's return over the baseline, on each of its tokens."""
        returns = discounted_returns(batch.rewards, self.config.discount)
        return batch.at_tokens(returns - BASELINES[self.config.baseline](self, returns, batch))

    def update_policy(self) -> dict[str, float]:
        """Plays greedily first where that is the baseline, and remembers the mean return."""
        if self.config.baseline == "greedy":
            greedy = play(self.policy, self.envs.env, self.next_problems(), temperature=0.0, seed=self.next_seed())
            self.spend(sum(episode.length for episode in greedy))
            rewards = [torch.tensor(episode.rewards) for episode in greedy]
            padded = torch.nn.utils.rnn.pad_sequence(rewards, batch_first=True)
            self.greedy_returns = discounted_returns(padded, self.config.discount)[:, 0]
        metrics = super().update_policy()
        past = self.memory.get("mean_reward", metrics["reward"])
        self.memory["mean_reward"] = RUNNING_DECAY * past + (1 - RUNNING_DECAY) * metrics["reward"]
        return metrics


BASELINES: dict[str, Callable[[Reinforce, Tensor, Batch], Tensor | float]] = {
    "none": lambda algorithm, returns, batch: 0.0,
    "group": lambda algorithm, returns, batch: group_baseline(returns, batch.step_count, batch.group),
    "batch": lambda algorithm, returns, batch: batch_baseline(returns, batch.step_count),
    "running": lambda algorithm, returns, batch: algorithm.memory.get("mean_reward", 0.0),
    "greedy": lambda algorithm, returns, batch: algorithm.greedy_returns[batch.group][:, None],
}
"""Each but the batch's and the group's is independent of the episode it is compared with, so it adds no bias."""
