"""Whether two LaTeX answers are equal: by their normalised text, by their exact value, and last by computer algebra.

text ── equal after normalising ──► right; two matrices ──► entry by entry
  └─ number ── equal exact values ──► right; two different numbers ──► wrong
       └─ symbolic ── math-verify, in a worker process with a time limit ──► right or wrong
"""

from __future__ import annotations

import functools
import re

from lmgym.rewards.algebra import for_algebra, matrix_entries
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
    rows, other_rows = matrix_entries(answer), matrix_entries(given)
    if rows is not None and other_rows is not None:
        return _compare_entries(rows, other_rows)
    right, other = for_algebra(answer, given)
    if right is None or other is None:
        return Comparison(False, "text")
    if not (_is_small(right) and _is_small(other)):
        return Comparison(False, "limit")
    return _by_algebra(right, other)


def _compare_entries(rows: list[list[str]], other_rows: list[list[str]]) -> Comparison:
    """Computer algebra accepts some matrices that differ, such as (4, 0) and (5, 0)."""
    if [len(row) for row in rows] != [len(row) for row in other_rows]:
        return Comparison(False, "text")
    pairs = [pair for row, other in zip(rows, other_rows, strict=True) for pair in zip(row, other, strict=True)]
    comparisons = [compare_latex(*pair) for pair in pairs]
    wrong = [comparison for comparison in comparisons if not comparison.is_right]
    return (wrong or comparisons)[-1]


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
