"""A user's own dataset: a JSON or JSONL file of problems with worked solutions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmgym.envs.math_env import MathEnv, Reward
from lmgym.errors import UserError
from lmgym.rewards.final_answer import AnswerForm, BoxedAnswer, NumberAnswer, find_boxes, parse_number
from lmgym.rewards.steps import StepReward
from lmgym.types import Problem

MARK = "####"
"""What GSM8K writes before the answer."""


class DatasetFile(MathEnv):
    """A maths task made of the rows of a file."""

    def __init__(
        self,
        path: str | Path,
        stepwise: bool = True,
        max_steps: int = 32,
        reward: Reward | None = None,
        step_reward: StepReward | None = None,
    ) -> None:
        dataset = load_dataset_file(path)
        super().__init__(dataset.problems, dataset.answer_form, stepwise, max_steps, reward, step_reward)


@dataclass(frozen=True)
class Dataset:
    """The problems of a file and the form in which they state their answers."""

    problems: list[Problem]
    answer_form: AnswerForm


def load_dataset_file(path: str | Path, name: str = "") -> Dataset:
    """Reads a file of rows; a row that cannot be used is an error that names the file, the line and the fault."""
    path = Path(path)
    problems: list[Problem] = []
    form: AnswerForm | None = None
    for where, row in read_rows(path):
        try:
            problem, row_form = problem_from_row(row, f"{name or path.stem}/{len(problems)}")
        except UserError as error:
            raise UserError(f"{path}, {where}: {error}") from None
        form = form or row_form
        if type(row_form) is not type(form):
            raise UserError(
                f"{path}, {where}: the answer is stated in another form than in the rows before; "
                r'use "The answer is: N" throughout, or \boxed{}.'
            )
        problems.append(problem)
    if form is None:
        raise UserError(f"{path} holds no problems: a row is a JSON object with a question and an answer.")
    return Dataset(problems, form)


def read_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Gives each row of a JSON list or of a JSONL file, with the place where it stands."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; give the path of a JSON or JSONL file.") from error
    if text.lstrip().startswith("["):
        rows = _parse(text, path, "")
        yield from ((f"row {index + 1}", row) for index, row in enumerate(rows))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"line {number}", _parse(line, path, f"line {number}")


def problem_from_row(row: Any, default_id: str) -> tuple[Problem, AnswerForm]:
    """Makes a problem of a row, in any of the forms that the datasets of this field have."""
    if not isinstance(row, dict):
        raise UserError(f"a row is a JSON object, but this one is {type(row).__name__}.")
    prompt = _text(row, ("question", "problem", "input"))
    solution = _text(row, ("solution", "answer", "target"))
    solution, answer, form = _solution_and_answer(solution)
    return Problem(str(row.get("id", default_id)), prompt, answer, solution), form


def _solution_and_answer(text: str) -> tuple[str, str, AnswerForm]:
    worked, mark, after = text.rpartition(MARK)
    if mark:
        return _with_final_line(worked.rstrip(), after.strip())
    stated = NumberAnswer().strict(text)
    if stated is not None:
        return text.strip(), stated.replace("$", ""), NumberAnswer()
    boxes = find_boxes(text)
    if boxes:
        return keep_last_box(text.strip()), boxes[-1], BoxedAnswer()
    if parse_number(text) is not None:
        return _with_final_line("", text.strip())
    raise UserError(rf'the solution states no answer: end it with "{MARK} N", "The answer is: N" or \boxed{{N}}.')


def _with_final_line(worked: str, answer: str) -> tuple[str, str, AnswerForm]:
    if parse_number(answer) is None:
        raise UserError(f'the answer "{answer[:40]}" is not a number.')
    final_line = NumberAnswer().show(answer)
    return f"{worked}\n{final_line}" if worked else final_line, answer, NumberAnswer()


def keep_last_box(solution: str) -> str:
    r"""Unboxes all but the last box, so that the one answer of a solution is the one that counts."""
    start = max(solution.rfind("\\boxed"), solution.rfind("\\fbox"))
    earlier = solution[:start].replace("\\boxed", "").replace("\\fbox", "")
    return earlier + solution[start:]


def _text(row: dict[str, Any], keys: tuple[str, ...]) -> str:
    for key in keys:
        value = row.get(key)
        if isinstance(value, str) and value.strip():
            return value
        if key in ("answer", "target") and isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if key in row:
            raise UserError(f'"{key}" is not a text, or is empty.')
    wanted = " or ".join(f'"{key}"' for key in keys)
    raise UserError(f"the row has no {wanted}; it has {', '.join(map(repr, row)) or 'nothing'}.")


def _parse(text: str, path: Path, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = where or f"line {error.lineno}"
        raise UserError(f"{path}, {where}: not valid JSON ({error.msg} at column {error.colno}).") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}{', ' + where if where else ''}: JSON that cannot be read ({error}).") from error
