"""A user's own dataset: a JSON or JSONL file of problems with worked solutions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmgym.envs.math_env import MathEnv
from lmgym.errors import UserError
from lmgym.rewards.final_answer import (
    AnswerForm,
    BoxedAnswer,
    FreeAnswer,
    NumberAnswer,
    TextAnswer,
    find_boxes,
    parse_number,
)
from lmgym.rewards.reward import Reward
from lmgym.rewards.steps import StepReward
from lmgym.types import Problem

MARK = "####"
"""The marker before the answer in GSM8K."""

QUESTION_KEYS = ("question", "problem", "input")
ANSWER_KEYS = ("solution", "answer", "target")
MAX_TEXT_ANSWER = 100
"""Maximum characters of an answer that is compared as text."""

_NO_ANSWER = (
    rf'the solution states no answer: end it with "{MARK} N", "The answer is: N" or \boxed{{N}}, '
    'give a short text as "answer", or pass a reward.'
)


class DatasetFile(MathEnv):
    """A task made of the rows of a file; rows without an answer that can be graded need a `reward`."""

    def __init__(
        self,
        path: str | Path,
        stepwise: bool = True,
        max_steps: int = 32,
        reward: Reward | None = None,
        step_reward: StepReward | None = None,
    ) -> None:
        dataset = load_dataset_file(path, is_graded=reward is None)
        super().__init__(dataset.problems, dataset.answer_form, stepwise, max_steps, reward, step_reward)


@dataclass(frozen=True)
class Dataset:
    """The problems of a file and the form in which they state their answers."""

    problems: list[Problem]
    answer_form: AnswerForm


def load_dataset_file(path: str | Path, name: str = "", is_graded: bool = True) -> Dataset:
    """Reads a file of rows; an invalid row is an error that names the file, the line and the fault."""
    path = Path(path)
    problems: list[Problem] = []
    form: AnswerForm | None = None
    is_worked = False
    for where, row in read_rows(path):
        try:
            problem, row_form = problem_from_row(row, f"{name or path.stem}/{len(problems)}", is_graded)
            is_worked = is_worked or (problem.solution != row_form.show(problem.answer))
            form = _common_form(form, row_form, is_worked, problem.answer, is_graded)
        except UserError as error:
            raise UserError(f"{path}, {where}: {error}") from None
        problems.append(problem)
    if form is None:
        raise UserError(f"{path} holds no problems: a row is a JSON object with a question and an answer.")
    return Dataset(problems, form)


def _common_form(
    form: AnswerForm | None, row_form: AnswerForm, is_worked: bool, answer: str, is_graded: bool
) -> AnswerForm:
    """The common answer form of the rows so far and the next one."""
    if form is None or type(form) is type(row_form):
        return row_form
    if not is_graded:
        return FreeAnswer()
    # Without worked solutions, answers may be numbers and words; among worked solutions, a word is a mistake.
    if not is_worked and not isinstance(form, BoxedAnswer) and not isinstance(row_form, BoxedAnswer):
        return TextAnswer()
    is_text = isinstance(form, NumberAnswer) and isinstance(row_form, TextAnswer)
    fault = f'the answer "{answer[:40]}" is not a number; ' if is_text else ""
    raise UserError(
        f"{fault}the answer is stated in another form than in the rows before; "
        r'use "The answer is: N" throughout, or \boxed{}, or pass a reward.'
    )


def read_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields each row of a JSON list or of a JSONL file, with its location."""
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


def read_problems(path: str | Path, problem_of: Callable[[dict[str, Any], int], Problem]) -> tuple[Problem, ...]:
    """Makes a problem of each row and its index; a row that is none is an error that names the file and the line."""
    path = Path(path)
    problems: list[Problem] = []
    for where, row in read_rows(path):
        try:
            problems.append(problem_of(checked_row(row), len(problems)))
        except UserError as error:
            raise UserError(f"{path}, {where}: {error}") from None
    if not problems:
        raise UserError(f"{path} holds no problems: a row is a JSON object with a question and an answer.")
    return tuple(problems)


def checked_row(row: Any) -> dict[str, Any]:
    """The row, if it is a JSON object."""
    if not isinstance(row, dict):
        raise UserError(f"a row is a JSON object, but this one is {type(row).__name__}.")
    return row


def problem_from_row(row: Any, default_id: str, is_graded: bool = True) -> tuple[Problem, AnswerForm]:
    """Makes a problem of a row in any of the usual dataset formats; the other fields go into `info`."""
    row = checked_row(row)
    prompt = text_of(row, QUESTION_KEYS)
    solution, answer, form = _solution_and_answer(row) if is_graded else _answer_or_text(row)
    texts = {key for key in (*QUESTION_KEYS, *ANSWER_KEYS) if isinstance(row.get(key), str)}
    info = {key: value for key, value in row.items() if key != "id" and key not in texts}
    return Problem(str(row.get("id", default_id)), prompt, answer, solution, info), form


def _answer_or_text(row: dict[str, Any]) -> tuple[str, str, AnswerForm]:
    """The answer if it can be graded, else the text in its place, or an empty text."""
    try:
        return _solution_and_answer(row)
    except UserError:
        text = next((row[key] for key in ANSWER_KEYS if isinstance(row.get(key), str)), "")
        return text, text, FreeAnswer()


def _solution_and_answer(row: dict[str, Any]) -> tuple[str, str, AnswerForm]:
    text = text_of(row, ANSWER_KEYS)
    worked, mark, after = text.rpartition(MARK)
    if mark:
        return _with_final_line(worked.rstrip(), after.strip())
    stated = NumberAnswer().strict(text)
    if stated is not None:
        return text.strip(), stated.replace("$", ""), NumberAnswer()
    boxes = find_boxes(text)
    if boxes:
        return keep_last_box(text.strip()), boxes[-1], BoxedAnswer()
    stated = TextAnswer().strict(text)
    if stated is not None:
        return text.strip(), stated, TextAnswer()
    has_both = "solution" in row and ("answer" in row or "target" in row)
    answer = text_of(row, ANSWER_KEYS[1:]) if has_both else text
    if has_both or "solution" not in row or parse_number(answer) is not None:
        return _with_final_line(text.strip() if has_both else "", answer.strip())
    raise UserError(_NO_ANSWER)


def _with_final_line(worked: str, answer: str) -> tuple[str, str, AnswerForm]:
    form: AnswerForm = TextAnswer() if parse_number(answer) is None else NumberAnswer()
    final_line = form.show(answer)
    # Also rejects a text that could not be parsed again: too long, or of several lines.
    if not answer or len(answer) > MAX_TEXT_ANSWER or form.strict(final_line) is None or "\n" in answer:
        raise UserError(_NO_ANSWER)
    return f"{worked}\n{final_line}" if worked else final_line, answer, form


def keep_last_box(solution: str) -> str:
    r"""Unboxes all but the last box, so that a solution states exactly one answer."""
    start = max(solution.rfind("\\boxed"), solution.rfind("\\fbox"))
    earlier = solution[:start].replace("\\boxed", "").replace("\\fbox", "")
    return earlier + solution[start:]


def text_of(row: dict[str, Any], keys: tuple[str, ...]) -> str:
    """The text in the first of these fields that the row has, or the number in its answer."""
    for key in keys:
        value = row.get(key)
        if isinstance(value, str) and value.strip():
            return value
        may_be_number = key in ("answer", "target")
        if may_be_number and _is_number(value):
            return str(value)
        if key in row:
            fault = "is neither a number nor a text" if may_be_number else "is not a text"
            raise UserError(f'"{key}" {fault}, or is empty.')
    expected = " or ".join(f'"{key}"' for key in keys)
    raise UserError(f"the row has no {expected}; it has {', '.join(map(repr, row)) or 'nothing'}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _parse(text: str, path: Path, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = where or f"line {error.lineno}"
        raise UserError(f"{path}, {where}: not valid JSON ({error.msg} at column {error.colno}).") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}{', ' + where if where else ''}: JSON that cannot be read ({error}).") from error
