"""Mixtures: the weights hold in every stretch, nothing repeats early, and each member grades its own episodes."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from conftest import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

import lmgym
from lmgym import Problem, UserError
from lmgym.commands.cli import main
from lmgym.envs.math_env import MathEnv
from lmgym.envs.mixture import Mixture, MixtureProblems, parse_mixture
from lmgym.envs.vector_env import VectorEnv
from lmgym.evaluation.contamination import held_out_indices
from lmgym.evaluation.evaluator import Evaluator
from lmgym.policies.policy_for import policy_for
from lmgym.types import Action


def squares(count: int, name: str) -> list[Problem]:
    return [Problem(f"{name}/{n}", f"{name}: {n}*{n}?", str(n * n)) for n in range(count)]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.05, 1), min_size=2, max_size=4), st.integers(0, 10_000))
def test_every_stretch_has_the_weights(weights, start):
    problems = MixtureProblems([squares(30, str(task)) for task in range(len(weights))], weights, seed=0)
    places = [problems.place(index)[0] for index in range(start, start + 200)]
    for task, weight in enumerate(weights):
        assert abs(places.count(task) - 200 * weight / sum(weights)) <= 2 * len(weights)


def test_no_problem_returns_before_all_of_its_task_were_used():
    problems = MixtureProblems([squares(30, "a"), squares(70, "b")], [1, 2], seed=3)
    seen = Counter(problems[index].id for index in range(300))
    of_a = [count for name, count in seen.items() if name.startswith("a/")]
    assert len(of_a) == 30
    assert max(of_a) - min(of_a) <= 1
    assert max(count for name, count in seen.items() if name.startswith("b/")) <= 3


def test_members_grade_their_own_episodes_and_the_info_names_them():
    one, other = MathEnv(squares(5, "one"), stepwise=False), lmgym.make("guess-number", largest=4)
    envs = VectorEnv(Mixture({"one": one, "other": other}, [1, 1]))
    states = envs.reset([0, 1])
    assert "The answer is" in states[0].messages[0]["content"]
    assert states[1].messages[0]["content"].endswith("Write only your guess, a number.")
    said = [f"The answer is: {states[0].problem.answer}", states[1].problem.answer]
    steps = envs.step([Action(text, episode=number) for number, text in enumerate(said)])
    assert [(step.info["env"], step.info["correct"], step.reward) for step in steps] == [
        ("one", True, 1),
        ("other", True, 1),
    ]


def test_what_members_have_in_common_is_said_once():
    env: Any = lmgym.make("arithmetic + word-problems")
    members: list[Any] = [lmgym.make(name) for name in ("arithmetic", "word-problems")]
    assert env.instruction == members[0].instruction
    assert env.instruction not in env.reset(options={"index": 0})[0].messages[0]["content"]
    assert env.max_steps == max(member.max_steps for member in members)
    assert not hasattr(lmgym.make("arithmetic + guess-number"), "instruction")


def test_splits_and_options_reach_the_members():
    env: Any = lmgym.make("arithmetic + 3*guess-number(largest=4)", "test", max_steps=7)
    assert env.members["arithmetic"].max_steps == 7
    assert env.members["guess-number"].problems.largest == 4
    assert {each.problems.split for each in env.members.values()} == {"test"}
    assert env.mixed.pattern.count(1) == 75
    with pytest.raises(UserError, match='no environment of arithmetic \\+ maze has an option "largest"'):
        lmgym.make("arithmetic + maze", largest=3)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("gsm8k + ", "cannot be read"),
        ("gsm8k + 2*", "cannot be read"),
        ("maze + maze", "twice"),
        ("maze + 0*gsm8k", "weight of 0"),
        ("maze + gsm8k(x)", "not options"),
    ],
)
def test_a_sum_that_cannot_be_read_is_one_sentence(expression, said):
    with pytest.raises(UserError, match=said):
        parse_mixture(expression)


def test_a_weight_below_a_hundredth_is_refused():
    with pytest.raises(UserError, match="less than 1 %"):
        lmgym.make("arithmetic + 0.001*maze")


def test_a_run_on_a_mixture_has_a_curve_for_each_member_and_resumes(model_folder, tmp_path):
    out, mixture = tmp_path / "run", "arithmetic + guess-number(largest=4)"
    flags = ["--model", str(model_folder), "--env", mixture, "--policy", "chat", "--shots", "0", "--max_tokens", "6"]
    flags += ["--problems_per_iteration", "4", "--group_size", "2", "--eval_problems", "4", "--save_every", "1"]
    main(["train", "rloo", *flags, "--iterations", "1", "--out", str(out)])
    main(["train", "--resume", str(out), "--iterations", "2"])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if "reward" in row]
    assert [row["iteration"] for row in trained] == [1, 2]
    assert all({"accuracy/arithmetic", "accuracy/guess-number"} <= row.keys() for row in trained)
    evaluated = [row for row in rows if "eval/strict" in row]
    assert all({"eval/strict/arithmetic", "eval/strict/guess-number"} <= row.keys() for row in evaluated)
    assert json.loads((out / "config.json").read_text())["env"] == mixture


def test_an_evaluation_repeats_no_problem_and_copies_in_training_are_found():
    small = Mixture({"a": MathEnv(squares(20, "a")), "b": MathEnv(squares(30, "b"))}, [1, 1])
    chosen = held_out_indices(small, 100, avoid=[])
    assert len({small.problems[index].id for index in chosen}) == len(chosen) == 50
    policy = policy_for(small, tiny_model(), shots=0)
    assert len(Evaluator(policy, small, 10).problems_shared_with(small)) == 10
    other = Mixture({"c": MathEnv(squares(20, "c")), "d": lmgym.make("arithmetic")}, [1, 1])
    assert Evaluator(policy, small, 10).problems_shared_with(other) == set()


def test_examples_in_the_opening_are_not_evaluated_on(tmp_path):
    rows = [json.dumps({"question": f"{n}+{n}?", "answer": str(2 * n)}) for n in range(10)]
    (tmp_path / "sums.jsonl").write_text("\n".join(rows))
    env: Any = lmgym.make(str(tmp_path / "sums.jsonl"), few_shot=3)
    chosen = [env.problems[index] for index in held_out_indices(env, 10, avoid=[])]
    assert len(chosen) == 7
    assert not {problem.id for problem in env.examples} & {problem.id for problem in chosen}
    with pytest.raises(UserError, match="fixes a split"):
        lmgym.make("arithmetic:test + maze", few_shot=2)


def test_what_a_mixture_cannot_have_is_refused():
    with pytest.raises(UserError, match="an option of the mixture"):
        lmgym.make("arithmetic(tools=calculator) + maze")
    with pytest.raises(UserError, match="self-play cannot be part of a mixture"):
        lmgym.make("arithmetic + number-race")
    env: Any = lmgym.make("math(levels=4,5, max_steps=3) + guess-number")
    assert env.max_steps == 3
    assert {problem.info["level"] for problem in env.members["math"].problems[:50]} <= {4, 5, "Level 4", "Level 5"}
