"""Equality of two formulas by computer algebra (math-verify); it has no time limit, so only a worker calls it."""

from __future__ import annotations

from typing import Any

CLOSE = 1e-5
"""Relative difference of equal numbers, one of which may be a rounded decimal of six places."""


def is_equivalent(answer: str, given: str) -> bool:
    """Whether two formulas in LaTeX, the correct one first, are mathematically equal; False if one cannot be read."""
    try:
        return _is_equivalent(answer, given)
    except (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError, AttributeError):
        return False


def _is_equivalent(answer: str, given: str) -> bool:
    import math_verify

    right, other = _parsed(answer), _parsed(given)
    if not right or not other:
        return False
    if _are_different_numbers(right[0], other[0]):
        return False
    # Only its second argument may be an inequality where the first one is a set.
    return any(
        math_verify.verify(*pair, allow_set_relation_comp=True, timeout_seconds=None)
        for pair in ((right, other), (other, right))
    )


def _are_different_numbers(one: Any, other: Any) -> bool:
    """Whether both are numbers and not close; math-verify rounds absolutely, so all tiny numbers are equal to it."""
    import sympy

    if not all(isinstance(each, sympy.Expr) and each.is_number and each.is_real for each in (one, other)):
        return False
    left, right = sympy.N(one, 15), sympy.N(other, 15)
    return bool(abs(left - right) > CLOSE * max(abs(left), abs(right)))


def _parsed(formula: str) -> list[Any]:
    import math_verify

    return list(
        math_verify.parse(
            f"${formula}$",
            extraction_config=[math_verify.LatexExtractionConfig()],
            fallback_mode="no_fallback",
            parsing_timeout=None,
        )
    )
