"""The few statistics an honest number needs."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Proportion:
    """A share of a sample with its 95 % interval."""

    value: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.value:.1%} [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def wilson(share: float, count: int) -> Proportion:
    """The Wilson score interval at 95 % (Wilson, 1927): honest for small samples and for shares near 0 and 1."""
    if count == 0:
        return Proportion(0.0, 0.0, 1.0, 0)
    z = 1.959963984540054
    centre = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    # At 0 and 1 the interval ends at the share itself, which rounding must not put outside of it.
    low, high = min((centre - spread) / scale, share), max((centre + spread) / scale, share)
    return Proportion(share, max(low, 0.0), min(high, 1.0), count)


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided exact p-value that two models solve the same problems equally well (McNemar, 1947).

    It looks only at the problems that exactly one of the two solved.
    """
    differing = only_first + only_second
    tail = sum(math.comb(differing, index) for index in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / 2**differing)


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The unbiased chance that one of k samples is right (Chen et al., 2021, https://arxiv.org/abs/2107.03374)."""
    if samples - right < k:
        return 1.0
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)
