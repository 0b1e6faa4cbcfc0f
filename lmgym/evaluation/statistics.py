"""Confidence intervals, paired tests and pass@k."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

EXACT_PAIRS = 12
"""Up to this many differing pairs, all 2^n signs are enumerated."""
DRAWS = 10_000
Z = 1.959963984540054
"""The normal distribution has 95 % of its mass within this many standard deviations."""


@dataclass(frozen=True)
class Proportion:
    """A share of a sample with its 95 % interval."""

    value: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.value:.1%} [{100 * self.low:.1f}, {100 * self.high:.1f}]"


@dataclass(frozen=True)
class Mean:
    """The mean of a sample with its 95 % interval."""

    value: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def mean_interval(values: Sequence[float]) -> Mean:
    """The normal interval at 95 %; for a single value it has width 0."""
    mean, count = float(np.mean(values)), len(values)
    half = Z * float(np.std(values, ddof=1)) / math.sqrt(count) if count > 1 else 0.0
    return Mean(mean, mean - half, mean + half, count)


def wilson(share: float, count: int) -> Proportion:
    """The Wilson score interval at 95 % (Wilson, 1927): accurate for small samples and for shares near 0 and 1."""
    if count == 0:
        return Proportion(0.0, 0.0, 1.0, 0)
    z = Z
    centre = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    # At 0 and 1 the interval ends at the share itself, which rounding must not put outside of it.
    low, high = min((centre - spread) / scale, share), max((centre + spread) / scale, share)
    return Proportion(share, max(low, 0.0), min(high, 1.0), count)


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided exact p-value of the hypothesis that two models are equally accurate (McNemar, 1947).

    It uses only the problems that exactly one of the two solved.
    """
    differing = only_first + only_second
    tail = sum(math.comb(differing, index) for index in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / 2**differing)


def paired_permutation(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided p-value of the hypothesis that two policies earn equal rewards: a sign-flip test on the differences.

    Exact for few differences, else from a fixed number of random signs, of which the observed ones count as one.
    """
    differences = np.asarray(second, dtype=float) - np.asarray(first, dtype=float)
    differences = differences[differences != 0]
    observed = abs(differences.sum()) * (1 - 1e-9)  # sums in another order round differently
    count = len(differences)
    if count <= EXACT_PAIRS:
        signs = 1 - 2 * (np.arange(2**count)[:, None] >> np.arange(count) & 1)
        return float(np.mean(np.abs(signs @ differences) >= observed))
    random = np.random.default_rng(0)
    extreme = sum(abs(random.choice((-1, 1), count) @ differences) >= observed for _ in range(DRAWS))
    return (1 + extreme) / (1 + DRAWS)


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The unbiased estimate that one of k samples is correct (Chen et al., 2021, https://arxiv.org/abs/2107.03374)."""
    if samples - right < k:
        return 1.0
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)
