"""SAPO: a smooth gate in place of the clip, gentler on good tokens than on bad ones (Gao et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmgym.advantages import over_group
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.policy_gradient import Normalisation, PolicyGradient, PolicyGradientConfig
from lmgym.learning.batch import Batch
from lmgym.losses import Averaging, soft_gated, token_ratios


@dataclass
class SAPOConfig(PolicyGradientConfig):
    """SAPO: the further a token is from the policy that sampled it, the less it counts."""

    has_a_ratio: ClassVar[bool] = True
    compares_groups: ClassVar[bool] = True

    averaging: Averaging = "episode"
    """token: all tokens weigh alike; episode: all episodes do; constant: a sum over a fixed length, without bias."""
    normalisation: Normalisation = "group"
    """group divides by the deviation of the group's returns."""
    sharpness_good: float = 1.0
    """How fast the gate closes for tokens with a positive advantage."""
    sharpness_bad: float = 1.05
    """And for those with a negative one."""


class SAPO(PolicyGradient):
    """On policy its gradient is GRPO's (https://arxiv.org/abs/2511.20347)."""

    Config: ClassVar[type[RLConfig]] = SAPOConfig
    config: SAPOConfig

    def credit(self, batch: Batch) -> Tensor:
        """The return over the group's mean."""
        return batch.at_every_token(over_group(batch.returns, batch.group))

    def objective(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """A sigmoid of the ratio."""
        ratios = token_ratios(logprobs, batch.logprobs)
        return soft_gated(ratios, batch.advantages, self.config.sharpness_good, self.config.sharpness_bad)
