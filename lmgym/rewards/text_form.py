"""Rewards for how a text is written: its form, its length and its repetitions."""

from __future__ import annotations

from dataclasses import dataclass

from lmgym.rewards.final_answer import AnswerForm
from lmgym.types import Problem


@dataclass(frozen=True)
class StatesAnswer:
    """1 if the text states an answer in the required form, right or wrong, else 0."""

    form: AnswerForm

    def __call__(self, problem: Problem, text: str) -> float:
        return float(self.form.strict(text) is not None)


@dataclass(frozen=True)
class Overlong:
    """0 up to `limit` words, then falling to -1 over `margin` words (the soft punishment of DAPO, in words)."""

    limit: int = 150
    margin: int = 50

    def __call__(self, problem: Problem, text: str) -> float:
        return -min(max(len(text.split()) - self.limit, 0) / max(self.margin, 1), 1.0)


@dataclass(frozen=True)
class Length:
    """The number of words divided by `scale`; its weight says whether long texts are wanted or not."""

    scale: int = 100

    def __call__(self, problem: Problem, text: str) -> float:
        return len(text.split()) / self.scale


@dataclass(frozen=True)
class Repetition:
    """Minus the share of sequences of `size` words that occurred before in the text."""

    size: int = 4

    def __call__(self, problem: Problem, text: str) -> float:
        words = text.split()
        sequences = [tuple(words[start : start + self.size]) for start in range(len(words) - self.size + 1)]
        return len(set(sequences)) / len(sequences) - 1.0 if sequences else 0.0
