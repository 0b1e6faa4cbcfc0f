"""Calculations that a text writes as `<<48/2=24>>`, and a reward for those that the worked solution has too."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from lmgym.calculator import EXACT_PLACES, ROUNDED_PLACES, canonical_expression, evaluate, format_number
from lmgym.rewards.final_answer import parse_number
from lmgym.types import Problem

_CALCULATION = re.compile(r"<<([^<>=\n]{1,200})=([^<>=\n]{1,60})>>")
_OPERATION = re.compile(r"[\d.)%](?:\*\*|//|[-+*/%])[-+(]*[\d.]")
"""An operator between two operands; a sign or a percent sign alone does not match."""


@dataclass(frozen=True)
class Calculations:
    """The calculations of a text: the values of the correct ones by their canonical form, and how many are wrong.

    `<<1=1>>`, without an operation, is neither.
    """

    right: dict[str, Fraction]
    wrong: int

    @classmethod
    def of(cls, text: str) -> Calculations:
        """Finds and checks the calculations of a text."""
        right, wrong = dict[str, Fraction](), 0
        for expression, stated in _CALCULATION.findall(text):
            value = parse_number(stated)
            if value is None or not _is_right(expression, stated, value):
                wrong += 1
            elif _OPERATION.search(canonical := canonical_expression(expression)):
                right[canonical] = value
        return cls(right, wrong)


@dataclass(frozen=True)
class IntermediateResults:
    """How far the results of a text's calculations are those of the worked solution: their shared ones over all.

    1 if they are the same, 0 if none is shared or the problem has no worked solution; wrong calculations have no
    result, and each superfluous one lowers it.
    """

    def __call__(self, problem: Problem, text: str) -> float:
        found, known = (set(Calculations.of(each).right.values()) for each in (text, problem.solution))
        return len(found & known) / len(found | known) if known else 0.0


def _is_right(expression: str, stated: str, value: Fraction) -> bool:
    """Whether a value is exact, is the calculator's output, or rounds a value of more than six decimals."""
    exact = evaluate(expression)
    if exact is None:
        return False
    is_long = (exact * 10**EXACT_PLACES).denominator != 1
    places = len(stated.partition(".")[2].strip())
    is_rounded = is_long and places >= ROUNDED_PLACES and value == round(exact, places)
    return value == exact or value == parse_number(format_number(exact)) or is_rounded
