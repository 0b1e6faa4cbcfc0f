"""GSM-Hard: GSM8K's test problems with larger numbers (Gao et al., 2022, https://arxiv.org/abs/2211.10435)."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

from lmgym.envs.dataset_file import read_problems, text_of
from lmgym.envs.math_env import MathEnv
from lmgym.errors import UserError
from lmgym.rewards.final_answer import NumberAnswer, parse_number
from lmgym.rewards.reward import Reward
from lmgym.rewards.steps import StepReward
from lmgym.types import Problem

TOLERANCE = Fraction(1, 1000)
"""The answers are results of float arithmetic, such as 3244047.0999999996."""


class GSMHard(MathEnv):
    """All 1,319 problems, as a test of arithmetic with large numbers: they have no worked solutions to learn from."""

    def __init__(
        self,
        split: str = "test",
        path: str | Path | None = None,
        stepwise: bool = True,
        max_steps: int = 32,
        reward: Reward | None = None,
        step_reward: StepReward | None = None,
    ) -> None:
        problems = _load(split, None if path is None else str(path))
        super().__init__(problems, NumberAnswer(tolerance=TOLERANCE), stepwise, max_steps, reward, step_reward)


@lru_cache(maxsize=2)
def _load(split: str, path: str | None) -> tuple[Problem, ...]:
    from lmgym.assets.catalogue import dataset_file

    return read_problems(path or dataset_file("gsm-hard", split), _problem)


def _problem(row: dict[str, Any], index: int) -> Problem:
    """A row has the question as `input` and the answer as `target`, a float."""
    target = text_of(row, ("target",))
    number = parse_number(target)
    if number is None:
        raise UserError(f'"target" is {target[:40]!r}, which is not a number.')
    answer = str(number.numerator) if number.denominator == 1 else target.strip()
    return Problem(f"gsm-hard/{index}", text_of(row, ("input",)), answer, NumberAnswer().show(answer))
