"""The type of reward functions, and the check of their values."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lmgym.errors import UserError
from lmgym.types import Problem

Reward = Callable[[Problem, str], float]
"""A function of the problem and of the policy's full text."""


def checked_reward(value: Any, function: Callable[..., Any], problem: Problem) -> float:
    """Converts a reward to a float; a value that is not a finite number is an error that names the function."""
    number = math.nan
    if not isinstance(value, str | bytes | bytearray):
        with suppress(TypeError, ValueError, OverflowError, RuntimeError):
            number = float(value)
    if not math.isfinite(number):
        name = getattr(function, "__qualname__", type(function).__name__)
        raise UserError(
            f"{name} returned the reward {str(value)[:60]!r} ({type(value).__name__}) for the problem {problem.id}: "
            "a reward is a finite number."
        )
    return number
