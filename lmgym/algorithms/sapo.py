"""SAPO: a smooth gate in place of the clip, gentler on good tokens than on bad ones (Gao et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.grpo import GroupRelative, GroupRelativeConfig
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.losses import Averaging, old_logprobs, sampler_weights, soft_gated, token_ratios


@dataclass
class SAPOConfig(GroupRelativeConfig):
    """SAPO: the further a token is from the policy that sampled it, the less it counts."""

    averaging: Averaging = "episode"
    """token: all tokens weigh alike; episode: all episodes do; constant: a sum over a fixed length, without bias."""
    sharpness_good: float = 1.0
    """How fast the gate closes for tokens with a positive advantage."""
    sharpness_bad: float = 1.05
    """And for those with a negative one."""
    max_sampler_ratio: float = 2.0
    """A token weighs as much as it was likelier to the learner than to the sampler, up to this; 0 is no correction."""

    def check(self) -> None:
        """Also refuses a gate that never closes."""
        super().check()
        if not (self.sharpness_good and self.sharpness_bad):
            raise UserError("--sharpness_good and --sharpness_bad must be above 0.")


class SAPO(GroupRelative):
    """On policy its gradient is GRPO's (https://arxiv.org/abs/2511.20347)."""

    Config: ClassVar[type[RLConfig]] = SAPOConfig
    config: SAPOConfig

    def objective(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """A sigmoid of the ratio."""
        config, old = self.config, old_logprobs(logprobs, batch)
        gated = soft_gated(token_ratios(logprobs, old), batch.advantages, config.sharpness_good, config.sharpness_bad)
        return sampler_weights(old, batch, config.max_sampler_ratio) * gated
