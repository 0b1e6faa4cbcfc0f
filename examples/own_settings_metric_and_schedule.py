"""Settings, a metric and a learning-rate schedule of your own, on top of an existing algorithm.

lmgym train examples.own_settings_metric_and_schedule:HalvingReinforce --halve_every 2 --iterations 6
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.reinforce_stable import ReinforceStable, ReinforceStableConfig
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.policies.llm_policy import LLMPolicy


@dataclass
class HalvingConfig(ReinforceStableConfig):
    """Each field is a flag of `lmgym train`, and the string under it is its help."""

    halve_every: int = 4
    """Halve the learning rate every this many optimiser steps."""

    def check(self) -> None:
        """Refuses settings that cannot work, before a model is loaded."""
        super().check()
        if self.halve_every < 1:
            raise UserError(f"--halve_every is {self.halve_every}: it must be at least 1.")


class HalvingReinforce(ReinforceStable):
    """REINFORCE-stable with a learning rate that halves, and with the share of rewarded episodes as a metric."""

    Config: ClassVar[type[RLConfig]] = HalvingConfig
    config: HalvingConfig

    def setup(self, ref_policy: LLMPolicy | None) -> None:
        """The schedule: from an optimiser step and the total number of steps to a factor of --learning_rate."""
        super().setup(ref_policy)
        self.learner.schedule = lambda step, total: 0.5 ** (step // self.config.halve_every)

    def advantages(self, batch: Batch) -> Tensor:
        """`self.recorded` joins the metrics of the iteration, in metrics.jsonl and in every tracker."""
        self.recorded["rewarded"] = float((batch.returns > 0).float().mean())
        return super().advantages(batch)
