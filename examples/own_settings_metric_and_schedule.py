"""Settings, a metric and a learning-rate schedule of one's own, on top of an algorithm that exists.

lmgym train examples.own_settings_metric_and_schedule:HalvingReinforce --halve_every 2 --iterations 6
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.reinforce_stable import ReinforceStable, ReinforceStableConfig
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.types import Episode


@dataclass
class HalvingConfig(ReinforceStableConfig):
    """Each field is a flag of `lmgym train`, and the line under it is its help."""

    halve_every: int = 4
    """Halve the learning rate after every so many optimiser steps."""

    def check(self) -> None:
        """Refuses what cannot work before anything is loaded."""
        super().check()
        if self.halve_every < 1:
            raise UserError(f"--halve_every is {self.halve_every}: it must be at least 1.")


class HalvingReinforce(ReinforceStable):
    """REINFORCE-stable whose learning rate halves, and which reports how many answers differ."""

    Config: ClassVar[type[RLConfig]] = HalvingConfig
    config: HalvingConfig

    def learning_rate_factor(self, step: int, total: int) -> float:
        """Asked before each optimiser step; the result multiplies --learning_rate."""
        return 0.5 ** (step // self.config.halve_every)

    def extra_metrics(self, episodes: Sequence[Episode], batch: Batch) -> dict[str, float]:
        """Joins the metrics of the iteration, in metrics.jsonl and in every tracker."""
        return {"distinct": len({episode.text for episode in episodes}) / len(episodes)}
