"""An optional grader: mathematical equivalence by the math-verify library, on inputs of bounded size."""

from __future__ import annotations

import re

from lmgym.errors import UserError

MAX_CHARACTERS = 200
MAX_NESTING = 10
MAX_DIGITS = 30

# Each of these can make the underlying algebra system compute for seconds, or without end.
_TOWER_OR_FACTORIAL = re.compile(r"\^\s*\{[^{}]*\^|\^\s*\w\s*\^|\^\s*\{[^{}]*\{[^{}]*\^|!|\\binom|\^\s*\{?\s*-?\d{4,}")
_LONG_NUMBER = re.compile(rf"\d{{{MAX_DIGITS},}}")


def is_equivalent_by_math_verify(gold: str, answer: str) -> bool:
    """Whether an answer is mathematically equal to the gold one; an answer too large to check counts as wrong."""
    try:
        import math_verify
    except ImportError as error:
        raise UserError("The math-verify grader is not installed: run pip install 'lmgym[math]'.") from error
    if not (_is_bounded(gold) and _is_bounded(answer)):
        return False
    # The library bounds its time by signals, which only the main thread may use; the bounds above replace them.
    parsed_gold = math_verify.parse(f"${gold.strip('$')}$", parsing_timeout=None)
    parsed_answer = math_verify.parse(f"${answer.strip('$')}$", parsing_timeout=None)
    return bool(math_verify.verify(parsed_gold, parsed_answer, timeout_seconds=None))


def _is_bounded(text: str) -> bool:
    if len(text) > MAX_CHARACTERS or _TOWER_OR_FACTORIAL.search(text) or _LONG_NUMBER.search(text):
        return False
    depth = deepest = 0
    for character in text:
        depth += (character in "{([") - (character in "})]")
        deepest = max(deepest, depth)
    return deepest <= MAX_NESTING
