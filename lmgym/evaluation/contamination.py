"""Contamination: whether a problem to evaluate on was also trained on, up to case, spacing and number format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lmgym.envs.env import Env
from lmgym.envs.mixture import MixtureProblems
from lmgym.rewards.final_answer import parse_number
from lmgym.types import Problem

MOST_REPEATS = 20
"""How far a mixture is searched for problems that are not repeated, in multiples of the number that is wanted."""


class Fingerprint(NamedTuple):
    """A problem normalised for case, spacing and number format, to detect copies."""

    prompt: str
    answer: str


def fingerprint(problem: Problem) -> Fingerprint:
    """The fingerprint that all copies of a problem share."""
    number = parse_number(problem.answer)
    answer = problem.answer if number is None else str(number)
    return Fingerprint(_normalised(problem.prompt), _normalised(answer))


def are_copies(problems: Sequence[Problem], others: Iterable[Fingerprint]) -> list[bool]:
    """For each problem to evaluate on, whether it is among the others.

    The prompt decides, because a copy may state its answer in another way or not at all; where several of the problems
    have the same prompt, as in a game with a fixed first message, the answer must be the same too.
    """
    evaluated = [fingerprint(problem) for problem in problems]
    answers = Counter(distinct.prompt for distinct in set(evaluated))
    known = set(others)
    prompts = {other.prompt for other in known}
    return [one in known or (answers[one.prompt] == 1 and one.prompt in prompts) for one in evaluated]


def overlap(evaluated: Iterable[Problem], trained: Iterable[Problem]) -> set[Fingerprint]:
    """The fingerprints of the evaluation problems that are also trained on."""
    problems = list(evaluated)
    copies = are_copies(problems, map(fingerprint, trained))
    return {fingerprint(problem) for problem, is_copy in zip(problems, copies, strict=True) if is_copy}


def held_out_indices(env: Env, count: int, avoid: Iterable[Problem]) -> list[int]:
    """Indices of the first `count` problems, or of all if there are fewer, without those shown as worked examples.

    A mixture of finite tasks repeats its problems; a repeated one is left out.
    """
    shown = {fingerprint(problem) for problem in (*avoid, *getattr(env, "examples", ()))}
    size = len(env.problems)
    if isinstance(env.problems, MixtureProblems):
        size = min(size, MOST_REPEATS * count)
    searched = min(count, size)
    while True:
        problems = [env.problems[index] for index in range(searched)]
        copies = are_copies(problems, shown)
        first = {problem.id: index for index, problem in reversed(list(enumerate(problems)))}
        chosen = [index for index, is_copy in enumerate(copies) if not is_copy and first[problems[index].id] == index]
        if len(chosen) >= count or searched == size:
            return chosen[:count]
        searched = min(searched + count - len(chosen), size)


def _normalised(text: str) -> str:
    return " ".join(text.lower().split())


class TrainedProblems:
    """The problems that a run was trained on, as fingerprints."""

    def __init__(self) -> None:
        self.fingerprints: set[Fingerprint] = set()

    def add(self, problems: Iterable[Problem]) -> None:
        """Adds the problems of training episodes."""
        self.fingerprints.update(map(fingerprint, problems))


def contamination_warning(shared: int, evaluated: int) -> str:
    """What is said where held-out problems are also trained on."""
    return (
        f"CONTAMINATED: {shared} of the {evaluated} problems to evaluate on are also trained on, so the accuracy of "
        "this run says nothing about new problems; every number is marked. Give others with --eval_env."
    )
