"""Dr. GRPO: GRPO without the two divisions that bias it (Liu et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.grpo import GRPO, GRPOConfig
from lmgym.algorithms.policy_gradient import Normalisation
from lmgym.losses import Averaging


@dataclass
class DrGRPOConfig(GRPOConfig):
    """Dr. GRPO: no division by the deviation, and none by the episode's length."""

    averaging: Averaging = "constant"
    """constant favours no length."""
    normalisation: Normalisation = "none"
    """none favours no difficulty."""


class DrGRPO(GRPO):
    """GRPO done right (https://arxiv.org/abs/2503.20783)."""

    Config: ClassVar[type[RLConfig]] = DrGRPOConfig
    config: DrGRPOConfig
