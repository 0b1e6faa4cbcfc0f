"""Rewards for single steps: functions of (state, text, next state), and a way to add them up."""

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
"""An operator between two operands, which a sign or a percent sign alone is not."""


def calculations_are_right(state: State, text: str, next_state: State) -> float:
    """Gives the share of a step's `<<expression=value>>` that are arithmetically right, 0 if there are none.

    A right one counts once in an episode, and only if it holds an operation: neither repetition nor `<<1=1>>` pays.
    """
    earlier: set[str] = set()
    for message in state.messages:
        if message["role"] == "assistant":
            earlier |= _right_and_wrong(message["content"])[0]
    right, wrong = _right_and_wrong(text)
    right -= earlier
    return len(right) / (len(right) + wrong) if right else 0.0


def weighted(*parts: tuple[float, StepReward]) -> StepReward:
    """Adds step rewards up, each times its weight: `weighted((0.1, calculations_are_right), (0.05, mine))`."""

    def total(state: State, text: str, next_state: State) -> float:
        return sum(
            weight * checked_reward(reward(state, text, next_state), reward, state.problem) for weight, reward in parts
        )

    return total


def _right_and_wrong(text: str) -> tuple[set[str], int]:
    """Gives the operations that are right, each in one spelling, and how many calculations are wrong."""
    right, wrong = set(), 0
    for expression, value in _CALCULATION.findall(text):
        if not _is_right(expression, value):
            wrong += 1
        elif _OPERATION.search(canonical := canonical_expression(expression)):
            right.add(canonical)
    return right, wrong


def _is_right(expression: str, written: str) -> bool:
    """Tells whether a value is right, is what the calculator writes, or is the rounding of one whose decimals go on."""
    exact, value = evaluate(expression), parse_number(written)
    if exact is None or value is None:
        return False
    goes_on = (exact * 10**EXACT_PLACES).denominator != 1
    places = len(written.partition(".")[2].strip())
    is_rounded = goes_on and places >= ROUNDED_PLACES and value == round(exact, places)
    return value == exact or value == parse_number(format_number(exact)) or is_rounded
