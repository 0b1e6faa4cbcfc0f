"""REINFORCE made stable: held to a reference by a KL penalty, and corrected when it learns from older episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.reinforce import Reinforce, ReinforceConfig


@dataclass
class ReinforceStableConfig(ReinforceConfig):
    """REINFORCE with a reference policy, a KL penalty with the right gradient, and truncated importance ratios."""

    kl_coeff: float = 0.01
    """How strongly the policy is held to the reference; 0 computes no reference at all."""
    max_ratio: float = 2.0
    """Importance ratios, which correct for learning again from older episodes, are cut here."""


class ReinforceStable(Reinforce):
    """Credit: returns over a baseline. Objective: ratio · (−advantage · log-probability + KL), the mean over tokens."""

    Config: ClassVar[type[RLConfig]] = ReinforceStableConfig
    config: ReinforceStableConfig
