"""CISPO: the ratio is clipped as a weight, so that no token ever loses its gradient (MiniMax, 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.grpo import GroupRelative, GroupRelativeConfig


@dataclass
class CISPOConfig(GroupRelativeConfig):
    """CISPO: REINFORCE with GRPO's advantages and truncated importance weights."""

    max_ratio: float = 5.0
    """Importance weights are cut here."""

    def corrects_old_episodes(self) -> bool:
        """By its weights."""
        return bool(self.max_ratio)


class CISPO(GroupRelative):
    """Where PPO's clip drops a token, this one only bounds its weight (https://arxiv.org/abs/2506.13585)."""

    Config: ClassVar[type[RLConfig]] = CISPOConfig
    config: CISPOConfig
