"""What every algorithm can be told; each field is a flag, and the line under it is its help."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from lmgym.errors import UserError


@dataclass
class RLConfig:
    """The settings of the loop and of the optimiser."""

    iterations: int = 7
    """How often to collect episodes and learn from them."""
    token_budget: int = 0
    """Stop earlier once so many tokens have been generated; 0 is no limit. The schedule goes by --iterations."""
    problems_per_iteration: int = 16
    """Problems per iteration; 0 plays nothing and learns from --replay_episodes alone."""
    group_size: int = 8
    """Episodes per problem; they are compared with each other."""
    updates_per_iteration: int = 1
    """Optimiser steps per iteration, each over the whole batch."""
    learning_rate: float = 6e-5
    """Step size of AdamW, before the schedule."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the learning rate falls over the run."""
    warmup_steps: int = 0
    """Optimiser steps over which the learning rate rises to its full size."""
    max_gradient_norm: float = 1.0
    """A longer gradient is scaled down to this norm."""
    weight_decay: float = 0.0
    """Decoupled weight decay of AdamW."""
    micro_batch_tokens: int = 1024
    """Tokens per forward and backward pass: less needs less memory and gives the same gradient."""
    recompute_activations: bool = False
    """Keep less of each pass and compute it again for the gradient: still less memory, and slower."""
    gradient_accumulation_steps: int = 1
    """Cut each optimiser step into about this many passes, or more; the gradient stays the same."""
    buffer_capacity: int = 4096
    """Episodes kept in memory; all of them stay on disk."""
    curriculum: bool = False
    """Prefer problems that were solved 20 to 80 % of the time when they last came, of the first 1024 of the task."""
    replay_episodes: int = 0
    """Older episodes from the buffer to learn from again in each iteration."""
    balanced_replay: bool = False
    """Replay as many rewarded episodes as unrewarded ones, instead of whole groups at random."""
    evaluate_every: int = 0
    """Evaluate after every so many iterations; 0 is only at the end."""
    evaluate_at_start: bool = True
    """Evaluate before the first iteration."""
    eval_problems: int = 200
    """Held-out problems per evaluation; 0 is no evaluation at all."""
    save_every: int = 10
    """Write a checkpoint after every so many iterations; 0 is only when interrupted."""
    seed: int = 0
    """The source of all randomness of the run."""

    @property
    def parts_groups(self) -> bool:
        """Whether an episode may stand alone in its group, with nobody to be compared with."""
        return self.group_size == 1 or bool(self.replay_episodes and self.balanced_replay)

    def check(self) -> None:
        """Refuses settings that cannot work, in one sentence."""
        at_least_one = {"iterations", "group_size", "updates_per_iteration"}
        at_least_one |= {"micro_batch_tokens", "gradient_accumulation_steps", "buffer_capacity"}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            least = 1 if field.name in at_least_one else 0
            if not value >= least:  # also true of nan
                raise UserError(f"--{field.name} is {value}: it must be at least {least}.")
        if not (self.problems_per_iteration or self.replay_episodes):
            raise UserError(
                "--problems_per_iteration 0 plays nothing: say how many to learn from with --replay_episodes."
            )
        if self.buffer_capacity < self.problems_per_iteration * self.group_size:
            raise UserError(
                f"--buffer_capacity is {self.buffer_capacity}, less than the "
                f"{self.problems_per_iteration * self.group_size} episodes of one iteration."
            )
        if self.max_gradient_norm == 0 or self.learning_rate == 0:
            raise UserError("--learning_rate and --max_gradient_norm must be above 0, or nothing is learnt.")
