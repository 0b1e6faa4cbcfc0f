"""ReMax: REINFORCE whose baseline is what the policy's own greedy answer earned (Li et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.reinforce import Reinforce, ReinforceConfig


@dataclass
class ReMaxConfig(ReinforceConfig):
    """ReMax: one sampled and one greedy episode per problem."""

    problems_per_iteration: int = 64
    """Problems per iteration; each costs one greedy episode more."""
    group_size: int = 1
    """Episodes per problem."""
    baseline: Literal["greedy"] = "greedy"
    """The greedy episode of the same problem."""


class ReMax(Reinforce):
    """Needs no group: every problem has a baseline of its own (https://arxiv.org/abs/2310.10505)."""

    Config: ClassVar[type[RLConfig]] = ReMaxConfig
    config: ReMaxConfig
