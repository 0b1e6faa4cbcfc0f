"""Rewards for single steps: functions of (state, text, next state), and their weighted sum."""

from __future__ import annotations

import re
from collections.abc import Callable

from lmgym.calculator import EXACT_PLACES, ROUNDED_PLACES, canonical_expression, evaluate, format_number
from lmgym.rewards.final_answer import parse_number
from lmgym.rewards.reward import checked_reward
from lmgym.types import State

StepReward = Callable[[State, str, State], float]

_CALCULATION = re.compile(r"<<([^<>=\n]{1,200})=([^<>=\n]{1,60})>>")
_OPERATION = re.compile(r"[\d.)%](?:\*\*|//|[-+*/%])[-+(]*[\d.]")
"""An operator between two operands; a sign or a percent sign alone does not match."""


def calculations_are_right(state: State, text: str, next_state: State) -> float:
    """The share of a step's `<<expression=value>>` that are arithmetically correct, 0 if there are none.

    A correct one counts once per episode, and only if it has an operation: repetition and `<<1=1>>` earn nothing.
    """
    earlier: set[str] = set()
    for message in state.messages:
        if message["role"] == "assistant":
            earlier |= _right_and_wrong(message["content"])[0]
    right, wrong = _right_and_wrong(text)
    right -= earlier
    return len(right) / (len(right) + wrong) if right else 0.0


def weighted(*parts: tuple[float, StepReward]) -> StepReward:
    """The sum of step rewards, each times its weight: `weighted((0.1, calculations_are_right), (0.05, mine))`."""

    def total(state: State, text: str, next_state: State) -> float:
        return sum(
            weight * checked_reward(reward(state, text, next_state), reward, state.problem) for weight, reward in parts
        )

    return total


def _right_and_wrong(text: str) -> tuple[set[str], int]:
    """The correct operations, each in canonical form, and the number of wrong calculations."""
    right, wrong = set(), 0
    for expression, value in _CALCULATION.findall(text):
        if not _is_right(expression, value):
            wrong += 1
        elif _OPERATION.search(canonical := canonical_expression(expression)):
            right.add(canonical)
    return right, wrong


def _is_right(expression: str, stated: str) -> bool:
    """Whether a value is exact, is the calculator's output, or rounds a value of more than six decimals."""
    exact, value = evaluate(expression), parse_number(stated)
    if exact is None or value is None:
        return False
    is_long = (exact * 10**EXACT_PLACES).denominator != 1
    places = len(stated.partition(".")[2].strip())
    is_rounded = is_long and places >= ROUNDED_PLACES and value == round(exact, places)
    return value == exact or value == parse_number(format_number(exact)) or is_rounded
