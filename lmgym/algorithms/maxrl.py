"""MaxRL: a policy gradient that climbs towards the likelihood of success (Tajwar et al., 2026)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmgym.advantages import over_success_rate
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.losses import Averaging


@dataclass
class MaxRLConfig(PolicyGradientConfig):
    """MaxRL: returns over, and divided by, the group's mean; for rewards that are 0 or 1."""

    compares_groups: ClassVar[bool] = True

    averaging: Averaging = "constant"
    """constant is the unbiased one; token and episode favour some lengths."""


class MaxRL(PolicyGradient):
    """The harder a problem, the more its rare successes weigh (https://arxiv.org/abs/2602.02710)."""

    Config: ClassVar[type[RLConfig]] = MaxRLConfig
    config: MaxRLConfig

    def credit(self, batch: Batch) -> Tensor:
        """(r − r̄) / r̄; the division makes no sense of rewards below 0."""
        if bool((batch.returns < 0).any()):
            raise UserError("maxrl needs rewards that are not negative; this environment gives some that are.")
        return batch.at_every_token(over_success_rate(batch.returns, batch.group))
