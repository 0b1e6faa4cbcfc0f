"""Learning-rate schedules: pure functions from the fraction of training done to a factor."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]

SHAPES = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: (1.0 + math.cos(math.pi * done)) / 2,
}


def learning_rate_factor(
    step: int, total: int, schedule: Schedule, warmup: int, since: int = 0, factor: float = 1.0
) -> float:
    """Rises linearly over `warmup` steps, then follows the schedule, reaching its end after `total` steps.

    A run that is resumed with another `total` continues from the `factor` that it had reached at step `since`.
    """
    if step < warmup:
        return (step + 1) / warmup
    begin = max(warmup, since)
    return factor * SHAPES[schedule](min((step - begin) / max(total - begin, 1), 1.0))
