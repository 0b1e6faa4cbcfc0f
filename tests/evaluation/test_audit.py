"""The audit of graders: it finds the faults of a bad one, and none in ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmgym.commands.cli import main
from lmgym.envs.math_env import MathEnv
from lmgym.evaluation.answer_variants import perturbations, rewrites
from lmgym.evaluation.audit import audit
from lmgym.rewards.comparison import Comparison
from lmgym.rewards.final_answer import BoxedAnswer, NumberAnswer, parse_number
from lmgym.types import Problem

NUMBERS = [
    Problem(id=str(n), prompt="?", answer=str(n), solution=f"It is {n}.\nThe answer is: {n}") for n in (3, 14, 1500)
]
FORMULAS = [
    Problem(id=answer, prompt="?", answer=answer, solution=rf"So $\boxed{{{answer}}}$.")
    for answer in (r"\frac{7}{4}", "x^2+1", r"\text{Evelyn}", "12345", r"(1,\infty)")
]


@dataclass(frozen=True)
class Careless(NumberAnswer):
    """Accepts an answer that begins with the right one."""

    def strict(self, text: str) -> str | None:
        return text.partition("The answer is: ")[2] or None

    def compare(self, answer: str, given: str) -> Comparison:
        return Comparison(given.strip().startswith(answer), "text")


def failures(env: MathEnv) -> dict[str, int]:
    return {check.name: check.failures for check in audit(env, range(len(env.problems))).checks}


@pytest.mark.parametrize("env", [MathEnv(NUMBERS), MathEnv(FORMULAS, BoxedAnswer()), MathEnv(NUMBERS, stepwise=False)])
def test_our_graders_pass(env):
    found = audit(env, range(len(env.problems)))
    assert all(check.failures == 0 for check in found.checks), found
    assert {check.name for check in found.checks if not check.count} <= {"another problem's answer"}
    assert found.compared > 0


def test_a_careless_grader_is_found_out():
    found = failures(MathEnv(NUMBERS, Careless()))
    assert found["gold answers, played"] == 0
    assert found["perturbed"] >= 3  # ten times, and hedged
    assert found["rewritten"] >= 3  # $3


def test_a_wrong_gold_answer_is_found():
    wrong = Problem(id="wrong", prompt="?", answer="5", solution="The answer is: 6")
    assert failures(MathEnv([*NUMBERS, wrong]))["gold answers, played"] == 1


@given(st.fractions(max_denominator=1).filter(bool) | st.decimals(-1000, 1000, places=2).map(Fraction))
def test_rewritten_numbers_are_equal_and_perturbed_ones_are_not(number):
    text = str(number) if number.denominator == 1 else str(float(number))
    for name, other in rewrites(text, is_latex=False):
        assert parse_number(other) == number, name
    for name, other in perturbations(text, is_latex=False):
        assert parse_number(other) != number, name


def test_the_command_writes_its_figures(tmp_path, capsys):
    rows = [{"question": "1+1?", "answer": "2"}, {"question": "1+2?", "answer": "3"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(["audit", str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "audit.json")])
    assert "gold answers" in capsys.readouterr().out
    checks = {check["name"]: check for check in json.loads((tmp_path / "audit.json").read_text())["checks"]}
    assert checks["gold answers, played"]["count"] == 2
    assert checks["gold answers, played"]["failures"] == 0
