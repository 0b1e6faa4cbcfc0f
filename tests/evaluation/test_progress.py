"""What is shown while an evaluation runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from lmgym.envs.math_env import MathEnv
from lmgym.evaluation import progress as module
from lmgym.evaluation.evaluation import evaluate
from lmgym.evaluation.progress import EvaluationProgress
from lmgym.evaluation.statistics import wilson
from lmgym.policies.scripted_policy import ScriptedPolicy
from lmgym.types import Action, Problem, State

PROBLEMS = [
    Problem(f"p/{number}", f"What is {number}?", str(number), f"The answer is: {number}") for number in range(8)
]


class OneByOne(ScriptedPolicy):
    """Answers one problem at a time; every other answer is wrong."""

    def __init__(self, clock: list[float]) -> None:
        super().__init__(self._line)
        self.clock = clock

    def next_actions(self, states, temperature=None):
        self.clock[0] += 20.0
        return self.get_actions(states[:1], temperature)

    def _line(self, state: State) -> Action:
        number = int(state.problem.answer)
        return Action(f"The answer is: {number if number % 2 == 0 else -1}", finish="eos")


@pytest.fixture
def shown(monkeypatch):
    """What is printed, to a file or to a terminal, by a clock that the policy moves."""

    def console(is_terminal: bool) -> tuple[io.StringIO, list[float]]:
        text, clock = io.StringIO(), [0.0]
        for place in ("lmgym.console.messages", "lmgym.evaluation.progress.messages"):
            monkeypatch.setattr(place, Console(file=text, force_terminal=is_terminal, width=120))
        monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
        return text, clock

    return console


def test_a_log_file_gets_a_line_every_half_minute(shown):
    text, clock = shown(False)
    with EvaluationProgress(8) as progress:
        result = evaluate(OneByOne(clock), MathEnv(PROBLEMS), range(8), progress=progress)
    lines = text.getvalue().splitlines()
    assert lines == [
        f"evaluating: {done} of 8 problems, strict {wilson(0.5, done)}, about {left} left"
        for done, left in ((2, "2m 00s"), (4, "1m 20s"), (6, "40s"))
    ]
    assert (progress.done, progress.correct) == (8, 4)
    assert result.strict == wilson(0.5, 8)


def test_samples_of_a_problem_count_as_one_problem(shown):
    text, clock = shown(False)
    with EvaluationProgress(16, samples=2) as progress:
        evaluate(OneByOne(clock), MathEnv(PROBLEMS), range(8), samples=2, progress=progress)
    assert text.getvalue().startswith(f"evaluating: 1 of 8 problems, strict {wilson(1.0, 1)}, about")


def test_a_terminal_gets_a_bar_that_disappears(shown):
    text, clock = shown(True)
    with EvaluationProgress(8) as progress:
        evaluate(OneByOne(clock), MathEnv(PROBLEMS), range(8), progress=progress)
        progress._bars.refresh()
    assert f"evaluating, strict {wilson(0.5, 8)}" in text.getvalue()
    assert "8/8" in text.getvalue()
    assert "evaluating:" not in text.getvalue()


def test_the_bar_joins_the_display_of_a_run(shown):
    text, clock = shown(True)
    with Progress(console=Console(file=text, force_terminal=True, width=120)) as bars:
        bars.add_task("training", total=2)
        with EvaluationProgress(8, bars=bars) as progress:
            evaluate(OneByOne(clock), MathEnv(PROBLEMS), range(8), progress=progress)
            assert len(bars.tasks) == 2
        assert [task.description for task in bars.tasks] == ["training"]
