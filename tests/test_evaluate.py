"""Evaluation with policies whose answers are known, so that every number of it is known too."""

from __future__ import annotations

import pytest

from lmgym.console import comparison_table, evaluation_line
from lmgym.envs.env import Env, Response
from lmgym.envs.math_env import MathEnv
from lmgym.errors import UserError
from lmgym.evaluate import evaluate, held_out_indices, overlap, paired_p_value
from lmgym.policies.scripted_policy import ScriptedPolicy, gold_line
from lmgym.statistics import wilson
from lmgym.types import END_OF_TURN, Problem, State

PROBLEMS = [
    Problem(
        f"sum/{i}", f"What is {i} + {i}?", str(2 * i), f"{i}+{i} = <<{i}+{i}={2 * i}>>{2 * i}\nThe answer is: {2 * i}"
    )
    for i in range(1, 301)
]


def env(count: int = 10, max_steps: int = 3) -> MathEnv:
    return MathEnv(PROBLEMS[:count], max_steps=max_steps)


def number(state: State) -> int:
    return int(state.problem.id.split("/")[1]) - 1


def test_gold_solutions_score_everything():
    result = evaluate(ScriptedPolicy(gold_line), env(), range(10))
    assert result.strict == result.lenient == wilson(1.0, 10)
    assert (result.unparsed, result.cut_off, result.mean_reward) == (0.0, 0.0, 1.0)
    assert result.problems == 10
    assert result.solved == (1.0,) * 10


def test_a_mixture_of_answers_gives_exactly_its_shares():
    def script(state: State) -> str:
        answer = state.problem.answer
        return {
            0: f"The answer is: {answer}",  # strict and lenient
            1: f"The answer is: {answer}",
            2: "The answer is: -1",  # parsed and wrong
            3: f"It must be {answer}{END_OF_TURN}",  # only lenient, unparsed
            4: f"I do not know{END_OF_TURN}",  # unparsed
            5: "hm",  # never ends: unparsed and cut off
            6: END_OF_TURN,  # silence
        }[number(state)]

    result = evaluate(ScriptedPolicy(script), env(), range(7))
    assert result.strict == wilson(2 / 7, 7)
    assert result.lenient == wilson(3 / 7, 7)
    assert result.unparsed == pytest.approx(4 / 7)
    assert result.cut_off == pytest.approx(1 / 7)
    assert result.mean_reward == pytest.approx(2 / 7)
    assert result.mean_length == 0.0  # a script writes no tokens
    assert result.solved == (1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    metrics = result.metrics()
    assert metrics["eval/strict"] == 2 / 7
    assert metrics["eval/strict_low"] < 2 / 7 < metrics["eval/strict_high"]
    assert metrics["eval/problems"] == 7
    assert not any("@" in name for name in metrics)


def test_pass_at_k_and_majority_at_k_of_a_known_mixture():
    def script(state: State) -> str:
        right, sample = state.problem.answer, state.episode % 4
        answers = {
            0: [right, right, "1", "3"],  # most are right
            1: ["1", "1", right, "2"],  # most are wrong
            2: ["1", right, right, "1"],  # a tie, and the first given is wrong
            3: [right, "1", "1", right],  # a tie, and the first given is right
            4: [None, None, None, right],  # silence has no vote
            5: [None, None, None, None],
            6: ["1", "2", "3", "5"],
        }[number(state)]
        return END_OF_TURN if answers[sample] is None else f"The answer is: {answers[sample]}"

    result = evaluate(ScriptedPolicy(script), env(), range(7), samples=4, temperature=0.7)
    assert result.solved == (0.5, 0.25, 0.5, 0.5, 0.25, 0.0, 0.0)
    assert result.strict == wilson(2.0 / 7, 7)  # the interval counts problems, not samples
    assert result.pass_at_k == wilson(5 / 7, 7)
    assert result.majority_at_k == wilson(3 / 7, 7)
    assert result.metrics()["eval/pass@4"] == 5 / 7
    assert result.metrics()["eval/maj@4"] == 3 / 7
    assert len(result.episodes) == 28
    assert {"pass@4", "maj@4"} <= set(comparison_table({"it": result}).columns[0].cells)


def test_a_problem_trained_on_is_found_by_its_text_and_marks_every_number():
    trained_on = ["  what   IS\n3 + 3? ", "What is 9999 + 1?"]
    result = evaluate(ScriptedPolicy(gold_line), env(), range(5), trained_on=trained_on)
    assert result.contaminated == 1
    assert all(name.startswith("contaminated_eval/") for name in result.metrics())
    assert result.to_json()["contaminated_problems"] == 1
    assert evaluation_line(result).startswith("CONTAMINATED ")
    assert "CONTAMINATED" in str(comparison_table({"it": result}).title)
    clean = evaluate(ScriptedPolicy(gold_line), env(), range(5), trained_on=trained_on[1:])
    assert clean.contaminated == 0
    assert not any("contaminated" in name for name in clean.metrics())
    assert evaluation_line(clean).startswith("held-out ")


def test_overlap_compares_texts_and_not_ids():
    copies = [Problem("other", "WHAT is  4 + 4?", "8"), Problem("sum/1", "Another question", "2")]
    assert overlap(copies, PROBLEMS) == {"what is 4 + 4?"}


def test_the_paired_p_value_looks_at_the_problems_that_only_one_solved():
    def solves(chosen: set[int]):
        def script(state: State) -> str:
            return gold_line(state) if number(state) in chosen else "The answer is: -1"

        return evaluate(ScriptedPolicy(script), env(), range(10))

    assert paired_p_value(solves({0, 1}), solves({0, 1})) == 1.0
    assert paired_p_value(solves({0}), solves({0, 1, 2, 3, 4, 5, 6})) == pytest.approx(2 / 64)
    assert paired_p_value(solves({0, 7}), solves(set(range(7)))) == pytest.approx(2 * (1 + 7) / 128)


def test_held_out_indices_leave_the_worked_examples_out():
    shown = [Problem("copy", " what is 2 + 2?", "4"), PROBLEMS[2]]
    assert held_out_indices(env(6), 3, avoid=shown) == [0, 3, 4]
    assert held_out_indices(env(6), 100, avoid=shown) == [0, 3, 4, 5]
    assert held_out_indices(env(6), 0, avoid=()) == []


def test_a_policy_may_answer_for_some_at_a_time_and_episodes_keep_their_order():
    class SomeAtATime(ScriptedPolicy):
        def next_actions(self, states, temperature=None):
            return self.get_actions(states[-1 - len(states) // 3 :], temperature)

    def script(state: State) -> str:  # later ones end first
        if state.turn == 0 and state.episode % 2 == 0:
            return "wait"
        return gold_line(state) if number(state) % 3 else "The answer is: -1"

    indices = list(range(299, 99, -1))
    result = evaluate(SomeAtATime(script), env(300), indices, samples=2)
    assert [episode.problem.id for episode in result.episodes] == [PROBLEMS[i].id for i in indices for _ in range(2)]
    assert result.solved == tuple(float(bool(i % 3)) for i in indices)
    seeds = [episode.steps[0].state.seed for episode in result.episodes]
    assert len(set(seeds)) == len(seeds)


def test_the_temperature_reaches_the_policy_and_greedy_is_the_default():
    asked = []

    class Asked(ScriptedPolicy):
        def get_actions(self, states, temperature=None):
            asked.append(temperature)
            return super().get_actions(states, temperature)

    evaluate(Asked(lambda state: "The answer is: 1"), env(), [0])
    evaluate(Asked(lambda state: "The answer is: 1"), env(), [0], temperature=0.7)
    assert asked == [0.0, 0.7]


def test_an_environment_that_does_not_grade_is_taken_at_its_reward():
    class Game(Env):
        def respond(self, state: State, text: str, ended: bool) -> Response:
            return Response(reward=1.0 if text == state.problem.answer else 0.5, terminated=True)

    policy = ScriptedPolicy(lambda state: state.problem.answer if number(state) else "no")
    result = evaluate(policy, Game(PROBLEMS[:4]), range(4))
    assert result.solved == (0.0, 1.0, 1.0, 1.0)
    assert result.lenient == result.strict
    assert result.mean_reward == pytest.approx(3.5 / 4)
    assert result.unparsed == 0.0


@pytest.mark.parametrize(("indices", "samples"), [([], 1), ([0], 0)])
def test_nothing_to_evaluate_is_one_sentence(indices, samples):
    with pytest.raises(UserError, match="nothing to evaluate"):
        evaluate(ScriptedPolicy(gold_line), env(), indices, samples=samples)
