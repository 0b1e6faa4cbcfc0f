"""Rewards for single steps: functions of (state, text, next state), and their weighted sum."""

from __future__ import annotations

from collections.abc import Callable

from lmgym.rewards.calculations import Calculations
from lmgym.rewards.reward import checked_reward
from lmgym.types import State

StepReward = Callable[[State, str, State], float]


def calculations_are_right(state: State, text: str, next_state: State) -> float:
    """The share of a step's `<<expression=value>>` that are arithmetically correct, 0 if there are none.

    A correct one counts once per episode, and only if it has an operation: repetition and `<<1=1>>` earn nothing.
    """
    earlier = {
        calculation
        for message in state.messages
        if message["role"] == "assistant"
        for calculation in Calculations.of(message["content"]).right
    }
    calculations = Calculations.of(text)
    right = len(calculations.right.keys() - earlier)
    return right / (right + calculations.wrong) if right else 0.0


def weighted(*parts: tuple[float, StepReward]) -> StepReward:
    """The sum of step rewards, each times its weight: `weighted((0.1, calculations_are_right), (0.05, mine))`."""

    def total(state: State, text: str, next_state: State) -> float:
        return sum(
            weight * checked_reward(reward(state, text, next_state), reward, state.problem) for weight, reward in parts
        )

    return total
