"""GSPO: GRPO whose ratio, and whose clip, belong to the whole episode (Zheng et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.grpo import GRPO, GRPOConfig
from lmgym.learning.batch import Batch
from lmgym.losses import sequence_ratios


@dataclass
class GSPOConfig(GRPOConfig):
    """GSPO: the geometric mean of an episode's ratios moves little, so its clip is narrow."""

    clip_low: float = 3e-4
    """An episode's mean ratio need not fall below 1 − this."""
    clip_high: float = 4e-4
    """Nor rise above 1 + this."""


class GSPO(GRPO):
    """What is rewarded is an episode, so what is corrected and clipped is one too (https://arxiv.org/abs/2507.18071).

    The correction for the sampler's rounding is still of single tokens.
    """

    Config: ClassVar[type[RLConfig]] = GSPOConfig
    config: GSPOConfig

    def ratios(self, logprobs: Tensor, old: Tensor, batch: Batch) -> Tensor:
        """How much likelier each episode is now, on each of its tokens."""
        return sequence_ratios(logprobs, old, batch.mask)
