"""AIME: competition problems whose answers are integers from 0 to 999, from a file of the user."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from lmgym.envs.dataset_file import keep_last_box, read_problems, text_of
from lmgym.envs.math_env import MathEnv
from lmgym.errors import UserError
from lmgym.rewards.final_answer import BoxedAnswer, find_boxes, parse_number
from lmgym.rewards.reward import Reward
from lmgym.rewards.steps import StepReward
from lmgym.types import Problem

LARGEST = 999
_FORM = BoxedAnswer()


class AIME(MathEnv):
    """Problems of the American Invitational Mathematics Examination, from a JSON or JSONL file: `path`."""

    def __init__(
        self,
        split: str = "test",
        path: str | Path | None = None,
        stepwise: bool = True,
        max_steps: int = 256,
        reward: Reward | None = None,
        step_reward: StepReward | None = None,
    ) -> None:
        if path is None:
            raise UserError(
                "No package has the problems of AIME: give a JSON or JSONL file of them as the option path, such as "
                "AI-MO/aimo-validation-aime or Maxwell-Jia/AIME_2024 of the Hugging Face hub."
            )
        super().__init__(_load(str(path)), _FORM, stepwise, max_steps, reward, step_reward)


@lru_cache(maxsize=2)
def _load(path: str) -> tuple[Problem, ...]:
    return read_problems(path, _problem)


def _problem(row: dict[str, Any], index: int) -> Problem:
    """A row has a problem, its answer and mostly a worked solution; the names of fields vary in case."""
    fields = {str(name).lower(): value for name, value in row.items()}
    stated = text_of(fields, ("answer",))
    number = parse_number(stated)
    if number is None or number.denominator != 1 or not 0 <= number <= LARGEST:
        raise UserError(f'"answer" is {stated[:40]!r}, but answers of AIME are integers from 0 to {LARGEST}.')
    answer = str(number.numerator)
    prompt = text_of(fields, ("problem", "question"))
    return Problem(f"aime/{fields.get('id', index)}", prompt, answer, _solution(fields.get("solution"), answer))


def _solution(worked: Any, answer: str) -> str:
    """The worked solution with one box, the answer: in some the last box is another value, and some have none."""
    if not isinstance(worked, str) or not worked.strip():
        return _FORM.show(answer)
    worked = worked.strip()
    boxes = find_boxes(worked)
    if boxes and _FORM.compare(answer, boxes[-1]).is_right:
        return keep_last_box(worked)
    return worked.replace("\\boxed", "").replace("\\fbox", "") + f"\n{_FORM.show(answer)}"
