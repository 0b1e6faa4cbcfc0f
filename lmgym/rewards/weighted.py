"""Weighted sums of rewards: `correct + 0.1*form + 0.5*overlong(200,50) - my_module:rudeness`.

A weight may change over the first iterations: `correct + 0.2->0@50*form` falls linearly from 0.2 to 0 in iteration 50.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lmgym.errors import UserError
from lmgym.lookup import nearest
from lmgym.rewards.calculations import IntermediateResults
from lmgym.rewards.final_answer import AnswerForm, FinalAnswer
from lmgym.rewards.reward import Reward, checked_reward
from lmgym.rewards.text_form import Length, Overlong, Repetition, StatesAnswer
from lmgym.types import Problem

OF_FORM: dict[str, Callable[[AnswerForm], Reward]] = {"correct": FinalAnswer, "form": StatesAnswer}
"""Rewards that depend on how the environment's answers are stated."""

OF_TEXT: dict[str, Callable[..., Reward]] = {
    "overlong": Overlong,
    "length": Length,
    "repetition": Repetition,
    "intermediate": IntermediateResults,
}
"""Rewards that need nothing else of the environment, with whole numbers as arguments."""

_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_TERM = re.compile(
    rf"\s*(?P<sign>[-+])?\s*(?:(?P<weight>{_NUMBER})(?:->(?P<end>{_NUMBER})@(?P<over>\d+))?\s*\*\s*)?"
    r"(?P<name>[A-Za-z_][\w.:]*)(?:\((?P<arguments>[\d,\s]*)\))?\s*"
)


@dataclass(frozen=True)
class Term:
    """One reward of a sum; those of OF_FORM have no function before they are given the form."""

    name: str
    weight: float
    reward: Reward | None
    end: float | None = None
    """The weight from iteration `over` on, if it changes."""
    over: int = 0

    def weight_at(self, iteration: int) -> float:
        """The weight in an iteration."""
        if self.end is None:
            return self.weight
        share = min(iteration / self.over, 1.0) if self.over else 1.0
        return self.weight + (self.end - self.weight) * share


@dataclass(frozen=True)
class WeightedReward:
    """A sum of rewards, each times its weight."""

    expression: str
    """As a user writes it."""
    terms: tuple[Term, ...]

    def with_form(self, form: AnswerForm) -> WeightedReward:
        """The same sum for answers of this form."""
        return replace(
            self,
            terms=tuple(
                term if term.reward is not None else replace(term, reward=OF_FORM[term.name](form))
                for term in self.terms
            ),
        )

    def parts(self, problem: Problem, text: str) -> dict[str, float]:
        """Each reward by its name, without its weight."""
        return {
            term.name: checked_reward(term.reward(problem, text), term.reward, problem)
            for term in self.terms
            if term.reward is not None
        }

    def total(self, parts: dict[str, float], iteration: int = 0) -> float:
        """The sum of these parts with the weights of an iteration."""
        return sum(term.weight_at(iteration) * parts[term.name] for term in self.terms)

    def __call__(self, problem: Problem, text: str) -> float:
        return self.total(self.parts(problem, text))


def parse_weighted(expression: str, load: Callable[[str], Reward]) -> WeightedReward:
    """Parses a sum; `load` imports rewards that are named as module:function."""
    terms: list[Term] = []
    place = 0
    if not expression.strip():
        raise UserError("--reward is empty: write a sum such as correct + 0.1*form")
    while place < len(expression):
        match = _TERM.match(expression, place)
        if match is None or (terms and not match["sign"]):
            raise UserError(
                f"--reward {expression!r} cannot be read at {expression[place:]!r}: write a sum such as "
                "correct + 0.1*form - my_module:my_function"
            )
        sign = -1 if match["sign"] == "-" else 1
        weight, end = sign * float(match["weight"] or 1), sign * float(match["end"]) if match["end"] else None
        function = _function(match["name"], match["arguments"], load)
        terms.append(Term(match["name"], weight, function, end, int(match["over"] or 0)))
        place = match.end()
    names = [term.name for term in terms]
    if len(set(names)) < len(names):
        raise UserError(f"--reward {expression!r} names a reward twice.")
    return WeightedReward(expression.strip(), tuple(terms))


def _function(name: str, arguments: str | None, load: Callable[[str], Reward]) -> Reward | None:
    given: list[Any] = [int(number) for number in (arguments or "").split(",") if number.strip()]
    if ":" in name:
        return load(name)
    if name in OF_FORM:
        return None
    if name not in OF_TEXT:
        known = [*OF_FORM, *OF_TEXT]
        meant = nearest(name, known)
        guess = f" (did you mean {meant}?)" if meant else ""
        raise UserError(
            f"there is no reward {name!r}{guess}; there are {', '.join(known)}, and your own as module:name."
        )
    try:
        return OF_TEXT[name](*given)
    except TypeError as error:
        raise UserError(f"the reward {name} cannot be made with {arguments}: {error}.") from None
