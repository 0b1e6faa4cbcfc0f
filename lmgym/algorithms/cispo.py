"""CISPO: the ratio is clipped as a weight, so that no token ever loses its gradient (MiniMax, 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmgym.advantages import over_group
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.policy_gradient import Normalisation, PolicyGradient, PolicyGradientConfig
from lmgym.learning.batch import Batch


@dataclass
class CISPOConfig(PolicyGradientConfig):
    """CISPO: REINFORCE with GRPO's advantages and truncated importance weights."""

    compares_groups: ClassVar[bool] = True

    normalisation: Normalisation = "group"
    """group divides by the deviation of the group's returns."""
    max_ratio: float = 5.0
    """Importance weights are cut here."""


class CISPO(PolicyGradient):
    """Where PPO's clip drops a token, this one only bounds its weight (https://arxiv.org/abs/2506.13585)."""

    Config: ClassVar[type[RLConfig]] = CISPOConfig
    config: CISPOConfig

    def credit(self, batch: Batch) -> Tensor:
        """The return over the group's mean."""
        return batch.at_every_token(over_group(batch.returns, batch.group))
