"""DAPO: GRPO with a higher upper clip, a token mean, dynamic sampling and a soft limit on length (Yu et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmgym.advantages import over_group, overlong_penalty, teaching_groups
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.grpo import GRPO, GRPOConfig
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.losses import Averaging
from lmgym.types import State


@dataclass
class DAPOConfig(GRPOConfig):
    """DAPO: clip-higher, token-level loss, dynamic sampling and overlong shaping."""

    averaging: Averaging = "token"
    """token lets every token of a long episode count."""
    clip_high: float = 0.28
    """More room to rise than to fall, so that rare tokens may become likely."""
    filter_groups: bool = True
    """Groups without a learning signal count for nothing, nor do groups that teach beyond those asked for."""
    max_helpings: int = 3
    """Sample other problems, up to so many times, until as many groups as asked for have something to teach."""
    soft_length: int = 0
    """From so many tokens on an episode's reward falls …"""
    hard_length: int = 0
    """… to 1 less at this many; 0 is no limit."""

    def check(self) -> None:
        """Also refuses a limit the wrong way round, and a buffer that forgets what was just collected."""
        super().check()
        if self.max_helpings < 1 or (self.soft_length and self.soft_length >= self.hard_length):
            raise UserError("--max_helpings must be at least 1, and --soft_length below --hard_length.")
        if self.curriculum:
            raise UserError("dapo looks for problems that teach something by itself: leave --curriculum out.")
        if self.buffer_capacity < self.max_helpings * self.problems_per_iteration * self.group_size:
            raise UserError(f"--buffer_capacity {self.buffer_capacity} does not hold --max_helpings of an iteration.")


class DAPO(GRPO):
    """Goes on sampling until the batch has enough to learn from (https://arxiv.org/abs/2503.14476).

    Its update is of groups that teach alone, and so is a KL beside it.
    """

    Config: ClassVar[type[RLConfig]] = DAPOConfig
    config: DAPOConfig

    @property
    def max_helpings(self) -> int:
        """How often an iteration may collect."""
        return self.config.max_helpings

    def more_states(self) -> list[State]:
        """Other problems, if too few groups so far teach anything, by the same credit that is learnt from."""
        count = self.config.problems_per_iteration
        batch = Batch.from_episodes(self.buffer.of_iteration(self.iteration))
        groups = len(batch.group.unique())
        teaching = batch.group[teaching_groups(self.credit(batch), batch.group)].unique()
        helping = groups // count
        if helping >= self.max_helpings or len(teaching) >= count:
            return []
        return self.envs.reset(self.next_problems(helping), self.config.group_size, self.next_seed(), groups)

    def kept(self, batch: Batch, teaching: Tensor) -> Tensor:
        """Of this iteration's groups that teach, only as many as were asked for, the first ones; all replayed ones."""
        numbers = batch.group[teaching & batch.fresh].unique()[: self.config.problems_per_iteration]
        return teaching & (torch.isin(batch.group, numbers) | ~batch.fresh)

    def credit(self, batch: Batch) -> Tensor:
        """The return, less a penalty for length, over the group's mean."""
        returns = batch.returns
        if self.config.hard_length:
            lengths = batch.mask.sum(dim=1).float()
            returns = returns + overlong_penalty(lengths, self.config.soft_length, self.config.hard_length)
        return batch.at_every_token(over_group(returns, batch.group))
