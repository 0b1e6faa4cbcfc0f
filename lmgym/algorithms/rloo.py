"""RLOO: REINFORCE with a leave-one-out baseline (Ahmadian et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmgym.advantages import leave_one_out
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from lmgym.learning.batch import Batch
from lmgym.losses import Averaging


@dataclass
class RLOOConfig(PolicyGradientConfig):
    """RLOO: an episode is compared with the others of its group."""

    compares_groups: ClassVar[bool] = True

    averaging: Averaging = "constant"
    """constant is the unbiased one; token and episode favour some lengths."""


class RLOO(PolicyGradient):
    """Unbiased: the baseline knows nothing of the episode it is taken from (https://arxiv.org/abs/2402.14740)."""

    Config: ClassVar[type[RLConfig]] = RLOOConfig
    config: RLOOConfig

    def credit(self, batch: Batch) -> Tensor:
        """The return over the mean of the others."""
        return batch.at_every_token(leave_one_out(batch.returns, batch.group))
