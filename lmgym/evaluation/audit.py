"""An audit of a grader: right answers in every spelling, wrong ones, hostile ones, and a second opinion."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lmgym.envs.math_env import MathEnv
from lmgym.errors import UserError
from lmgym.evaluation.answer_variants import perturbations, rewrites
from lmgym.rewards.final_answer import AnswerForm, BoxedAnswer, FreeAnswer, grade
from lmgym.rewards.latex_checker import second_opinion
from lmgym.types import Action, Problem

HOSTILE = (
    "(x+1)^{999}",
    r"\Gamma(99999999)",
    "10^{{10}^{10}}",
    "9^{9^{9^9}}",
    "99999999!",
    "9" * 5_000,
    "9" * 250 + "!",
    r"\int_0^1 e^{x^x} dx",
    r"\prod_{i=1}^{1000000} i",
    r"\sum_{n=1}^{99999999} \frac{1}{n^n}",
    "(" * 500 + "1" + ")" * 500,
    r"\frac{1}{" * 19 + "x" + "}" * 19,
    r"\sqrt{" * 200,
    "{" * 10_000,
    r"\boxed{" * 2_000,
    "$" * 10_000,
    "1," * 5_000,
    "-" * 10_000 + "5",
    "5" + " " * 20_000,
    "\\" * 10_000,
    "\u202e5\u0000\ud7ff" * 100,
)
"""Answers that made graders compute for minutes, recurse without end or backtrack."""

EXAMPLES = 20
"""Failures that are kept of each kind."""


@dataclass
class Check:
    """How often a grader decided as it should for one kind of answer."""

    name: str
    should_accept: bool
    count: int = 0
    failures: int = 0
    slowest: float = 0.0
    """Seconds of the slowest decision."""
    examples: list[tuple[str, str, str]] = field(default_factory=list)
    """The problem, its answer and the wrongly judged one."""

    def record(self, problem: str, answer: str, given: str, accepted: bool, seconds: float) -> None:
        """Counts one decision."""
        self.count += 1
        self.slowest = max(self.slowest, seconds)
        if accepted != self.should_accept:
            self.failures += 1
            if len(self.examples) < EXAMPLES:
                self.examples.append((problem, answer[:200], given[:200]))


@dataclass
class Audit:
    """All checks of an environment's grader."""

    checks: list[Check]
    stages: dict[str, int]
    """How many answers were decided by each comparison."""
    compared: int
    disagreements: list[tuple[str, str, bool]]
    """The answer, the given one and our decision, where computer algebra alone decides otherwise."""

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return asdict(self)


def audit(
    env: MathEnv, indices: Sequence[int], opinions: int = 500, report: Callable[[int], None] = lambda done: None
) -> Audit:
    """Plays the gold answers of these problems through the environment, and grades variants of them.

    For the first `opinions` problems each decision is compared with that of computer algebra alone.
    """
    form = env.answer_form
    if isinstance(form, FreeAnswer):
        raise UserError("these problems have no answers to grade.")
    gold, hostile = Check("gold answers, played", True), Check("hostile", False)
    variants = {
        "rewritten": Check("rewritten", True),
        "perturbed": Check("perturbed", False),
        "other": Check("another problem's answer", False),
    }
    result = Audit([gold, *variants.values(), hostile], {}, 0, [])
    for position, index in enumerate(indices):
        problem, next_problem = env.problems[index], env.problems[indices[(position + 1) % len(indices)]]
        started = time.monotonic()
        accepted = _is_accepted(env, index)
        gold.record(problem.id, problem.answer, problem.solution or "", accepted, time.monotonic() - started)
        for kind, given in _variants(problem.answer, next_problem.answer, isinstance(form, BoxedAnswer)):
            accepted = _grade(result, variants[kind], form, problem, given)
            if position < opinions:
                _compare_opinions(result, problem.answer, given, accepted)
        report(position + 1)
    for given in HOSTILE:
        _grade(result, hostile, form, env.problems[indices[0]], given)
    return result


def _is_accepted(env: MathEnv, index: int) -> bool:
    """Whether the environment rewards the worked solution, or, without one, the stated answer."""
    env.reset(options={"index": index})
    problem = env.problems[index]
    solution = problem.solution or env.answer_form.show(problem.answer)
    lines: Iterable[str] = solution.splitlines(keepends=True) if env.stepwise else [solution]
    info: dict[str, Any] = {}
    for line in lines:
        *_, terminated, truncated, info = env.step(Action(line, finish="stop"))
        if terminated or truncated:
            return bool(info.get("correct"))
    *_, info = env.step(Action("", finish="eos"))
    return bool(info.get("correct"))


def _variants(answer: str, other: str, is_latex: bool) -> Iterator[tuple[str, str]]:
    yield from (("rewritten", text) for _, text in rewrites(answer, is_latex))
    yield from (("perturbed", text) for _, text in perturbations(answer, is_latex))
    if second_opinion(answer, other) is False:
        yield "other", other


def _grade(result: Audit, check: Check, form: AnswerForm, problem: Problem, given: str) -> bool:
    started = time.monotonic()
    found = grade(form, problem.answer, form.show(given))
    check.record(problem.id, problem.answer, given, found.correct, time.monotonic() - started)
    if found.stage is not None:
        result.stages[found.stage] = result.stages.get(found.stage, 0) + 1
    return found.correct


def _compare_opinions(result: Audit, answer: str, given: str, accepted: bool) -> None:
    opinion = second_opinion(answer, given)
    if opinion is None:
        return
    result.compared += 1
    if opinion != accepted:
        result.disagreements.append((answer, given, accepted))
