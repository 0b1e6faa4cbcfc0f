"""Final answers: how a solution states its answer, how it is extracted from a text, and whether it is correct."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from lmgym.rewards.comparison import Comparison, Stage
from lmgym.rewards.latex import last_formula, without_boxes
from lmgym.rewards.latex_checker import compare_latex
from lmgym.types import Problem

MAX_DIGITS = 60

_EXPONENT = r"(?:[eE][-+]?\d{1,3})?"
_WITH_COMMAS = r"\d{1,3}(?:,\d{3})+"
_NUMBER = re.compile(rf"[-+]?(?:(?:{_WITH_COMMAS}|\d+)(?:\.\d*)?|\.\d+){_EXPONENT}")
_DIGITS = rf"(?:{_WITH_COMMAS}|\d{{1,{MAX_DIGITS}}})(?:\.\d{{1,{MAX_DIGITS}}})?|\.\d{{1,{MAX_DIGITS}}}"
_STATED = r"^[ \t]*(?:(?:[Ss]o|[Tt]hus|[Hh]ence|[Tt]herefore|[Ff]inally)(?:,|[ \t])[ \t]*)?[Tt]he answer is:[ \t]*"
_STRICT_NUMBER = re.compile(
    rf"{_STATED}([-+]?\$?[-+]?(?:{_DIGITS}){_EXPONENT})[ \t]?%?\.?[ \t\r]*$",
    re.MULTILINE | re.ASCII,
)
_STRICT_TEXT = re.compile(rf"{_STATED}(\S[^\n]{{0,200}})$", re.MULTILINE)
_FLEXIBLE_NUMBER = re.compile(rf"(?:-?[$0-9.,]{{2,}}|-?[0-9]+){_EXPONENT}", re.ASCII)
_BOX_TOKEN = re.compile(r"\\(?:boxed|fbox)\s*\{|\\(?:boxed|fbox)\s+(-?\d+(?:[.,]\d+)*|\w)|\\.|[{}]", re.DOTALL)


class AnswerForm(Protocol):
    """The answer format of a task."""

    @property
    def instruction(self) -> str:
        """One sentence for a system prompt that says how to state the answer."""

    def show(self, answer: str) -> str:
        """States an answer in the required form."""

    def strict(self, text: str) -> str | None:
        """Extracts the answer in the required form; a step-wise episode ends with the line that completes one."""

    def lenient(self, text: str) -> str | None:
        """Extracts the probable answer, whatever its form."""

    def compare(self, answer: str, given: str) -> Comparison:
        """Whether a given answer equals the correct one, and what decided it."""


@dataclass(frozen=True)
class NumberAnswer:
    """Answers that are one number; the first line `The answer is: N` counts, also after a word such as `So`."""

    instruction: str = 'End with a line that says "The answer is: " and the number.'
    tolerance: Fraction = Fraction(0)
    """How far a given number may be from the correct one; a share of it if that is below 1, so that 0 is not 2e-06."""

    def show(self, answer: str) -> str:
        return f"The answer is: {answer}"

    def strict(self, text: str) -> str | None:
        match = _STRICT_NUMBER.search(text)
        return match[1] if match else None

    def lenient(self, text: str) -> str | None:
        """Extracts the last number, as the flexible-extract filter of lm-eval-harness does."""
        numbers = [match[0] for match in _FLEXIBLE_NUMBER.finditer(text)]
        return numbers[-1] if numbers else None

    def compare(self, answer: str, given: str) -> Comparison:
        right, number = parse_number(answer), parse_number(given)
        if right is None or number is None:
            return Comparison(False, "number")
        return Comparison(abs(number - right) <= self.tolerance * min(abs(right), Fraction(1)), "number")


@dataclass(frozen=True)
class BoxedAnswer:
    r"""Answers in LaTeX, within `\boxed{...}`; the last box counts."""

    instruction: str = r"Put the final answer within \boxed{}."

    def show(self, answer: str) -> str:
        return rf"The answer is $\boxed{{{answer}}}$."

    def strict(self, text: str) -> str | None:
        boxes = find_boxes(text)
        return boxes[-1] if boxes else None

    def lenient(self, text: str) -> str | None:
        """Extracts the boxed answer, or else the last formula, or else the last number."""
        return self.strict(text) or last_formula(text) or NumberAnswer().lenient(text)

    def compare(self, answer: str, given: str) -> Comparison:
        return compare_latex(without_boxes(answer), without_boxes(given))


@dataclass(frozen=True)
class TextAnswer:
    """Answers that are a short text; the first line `The answer is: ...` counts."""

    instruction: str = 'End with a line that says "The answer is: " and the answer.'

    def show(self, answer: str) -> str:
        return f"The answer is: {answer}"

    def strict(self, text: str) -> str | None:
        match = _STRICT_TEXT.search(text)
        return match[1].strip() if match else None

    def lenient(self, text: str) -> str | None:
        """Extracts the stated answer, or else the last line."""
        lines = text.strip().splitlines()
        return self.strict(text) or (lines[-1] if lines else None)

    def compare(self, answer: str, given: str) -> Comparison:
        """Compares as texts regardless of case, spaces and a final full stop, or as numbers."""
        if _plain(answer) == _plain(given) != "":
            return Comparison(True, "text")
        number = parse_number(answer)
        return Comparison(number is not None and number == parse_number(given), "number")


@dataclass(frozen=True)
class FreeAnswer:
    """Answers of unknown form, which only a user's own reward can grade."""

    instruction: str = ""

    def show(self, answer: str) -> str:
        return answer

    def strict(self, text: str) -> str | None:
        return None

    def lenient(self, text: str) -> str | None:
        return None

    def compare(self, answer: str, given: str) -> Comparison:
        return Comparison(False, "text")


@dataclass(frozen=True)
class Grade:
    """The grade of a final text; it becomes the `info` of an episode's last step."""

    correct: bool
    lenient: bool
    parsed: bool
    answer: str | None
    lenient_answer: str | None
    stage: Stage | None
    """Which comparison decided about the strict answer; `limit`: it took too long and counts as wrong."""


def grade(form: AnswerForm, answer: str, text: str) -> Grade:
    """Grades a text against the correct answer, strictly and leniently."""
    strict, lenient = form.strict(text), form.lenient(text)
    comparison = None if strict is None else form.compare(answer, strict)
    correct = comparison is not None and comparison.is_right
    return Grade(
        correct=correct,
        lenient=correct or (lenient is not None and form.compare(answer, lenient).is_right),
        parsed=strict is not None,
        answer=strict,
        lenient_answer=lenient,
        stage=comparison.stage if comparison else None,
    )


@dataclass(frozen=True)
class FinalAnswer:
    """Reward 1 for a correct answer in the required form, else 0."""

    form: AnswerForm

    def __call__(self, problem: Problem, text: str) -> float:
        return float(grade(self.form, problem.answer, text).correct)


def parse_number(text: str) -> Fraction | None:
    """Parses a number exactly, with or without `$`, thousands commas, an exponent, `%` and final punctuation."""
    if len(text) > 2 * MAX_DIGITS:
        return None
    bare = text.strip().rstrip("%").strip().replace("$", "").removesuffix(",").removesuffix(".")
    return Fraction(bare.replace(",", "")) if bare.isascii() and _NUMBER.fullmatch(bare) else None


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).removesuffix(".").rstrip()


def find_boxes(text: str) -> list[str]:
    r"""The content of every complete `\boxed{...}` that is not empty, in the order in which they close."""
    boxes: list[str] = []
    open_braces: list[int | None] = []  # where the content of a box began, None for any other brace
    for match in _BOX_TOKEN.finditer(text):
        token = match[0]
        if match[1] is not None:
            boxes.append(match[1])
        elif token == "{":
            open_braces.append(None)
        elif token.endswith("{") and token != r"\{":
            open_braces.append(match.end())
        elif token == "}" and open_braces:
            start = open_braces.pop()
            content = "" if start is None else text[start : match.start()].strip()
            if content:
                boxes.append(content)
    return boxes
