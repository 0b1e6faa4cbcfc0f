"""Rewards for single steps: functions of (state, text, next state), and a way to add them up."""

from __future__ import annotations

import re
from collections.abc import Callable

from lmgym.calculator import EXACT_PLACES, ROUNDED_PLACES, evaluate
from lmgym.rewards.final_answer import parse_number
from lmgym.types import State

StepReward = Callable[[State, str, State], float]

_CALCULATION = re.compile(r"<<([^<>=\n]{1,200})=([^<>=\n]{1,60})>>")


def calculations_are_right(state: State, text: str, next_state: State) -> float:
    """Gives the share of a step's `<<expression=value>>` that are arithmetically right, 0 if there are none."""
    calculations = _CALCULATION.findall(text)
    if not calculations:
        return 0.0
    return sum(_is_right(expression, value) for expression, value in calculations) / len(calculations)


def weighted(*parts: tuple[float, StepReward]) -> StepReward:
    """Adds step rewards up, each times its weight: `weighted((0.1, calculations_are_right), (0.05, mine))`."""

    def total(state: State, text: str, next_state: State) -> float:
        return sum(weight * reward(state, text, next_state) for weight, reward in parts)

    return total


def _is_right(expression: str, written: str) -> bool:
    """Tells whether a value is right, or is the rounding of one whose decimals go on."""
    exact, value = evaluate(expression), parse_number(written)
    if exact is None or value is None:
        return False
    goes_on = (exact * 10**EXACT_PLACES).denominator != 1
    places = len(written.partition(".")[2].strip())
    return value == exact or (goes_on and places >= ROUNDED_PLACES and value == round(exact, places))
