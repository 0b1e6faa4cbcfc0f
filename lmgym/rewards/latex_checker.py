"""Whether two LaTeX answers are equal: by their normalised text, by their exact value, and last by computer algebra.

text ── equal after normalising ──► right
  └─ number ── equal exact values ──► right; two different numbers ──► wrong
       └─ symbolic ── math-verify, in a worker process with a time limit ──► right or wrong
"""

from __future__ import annotations

import functools
import re

from lmgym.rewards.algebra import for_algebra
from lmgym.rewards.comparison import Comparison
from lmgym.rewards.latex import compare_exactly
from lmgym.rewards.worker_pool import OverrunError, WorkerPool

SECONDS = 0.8
"""Limit of the symbolic comparison; an answer that needs longer is wrong."""

MAX_CHARACTERS = 300
"""Longer answers are not compared symbolically."""

MAX_NESTING = 20

_BRACKET = re.compile(r"[{}()\[\]]")


def compare_latex(answer: str, given: str) -> Comparison:
    """Compares a given answer with the correct one."""
    comparison = compare_exactly(answer, given)
    if comparison is not None:
        return comparison
    right, other = for_algebra(answer, given)
    if right is None or other is None:
        return Comparison(False, "text")
    if not (_is_small(right) and _is_small(other)):
        return Comparison(False, "limit")
    return _by_algebra(right, other)


def second_opinion(answer: str, given: str) -> bool | None:
    """What computer algebra alone says, without any rule of ours; None if it does not finish."""
    try:
        return bool(_pool().ask([answer, given]))
    except OverrunError:
        return None


@functools.lru_cache(maxsize=20_000)
def _by_algebra(answer: str, given: str) -> Comparison:
    """Remembered, because the samples of a group often agree."""
    try:
        return Comparison(bool(_pool().ask([answer, given])), "symbolic")
    except OverrunError:
        return Comparison(False, "limit")


@functools.cache
def _pool() -> WorkerPool:
    return WorkerPool("lmgym.rewards.symbolic_worker", seconds=SECONDS)


def _is_small(formula: str) -> bool:
    if len(formula) > MAX_CHARACTERS:
        return False
    depth = deepest = 0
    for bracket in _BRACKET.findall(formula):
        depth += 1 if bracket in "{([" else -1
        deepest = max(deepest, depth)
    return deepest <= MAX_NESTING
