"""Evaluation with policies whose answers are known, so that every number of it is known too."""

from __future__ import annotations

import json

import pytest

from lmgym.envs.env import Env, Response
from lmgym.envs.math_env import MathEnv
from lmgym.errors import UserError
from lmgym.evaluation.contamination import Fingerprint, fingerprint, held_out_indices, overlap
from lmgym.evaluation.evaluation import Evaluation, evaluate, paired_p_value
from lmgym.evaluation.statistics import mean_interval, wilson
from lmgym.policies.scripted_policy import ScriptedPolicy, gold_line
from lmgym.runs import plotting
from lmgym.runs.plotting import new_figure
from lmgym.runs.tables import comparison_table, difference_line, evaluation_line
from lmgym.types import Action, Finish, Problem, State

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
    def script(state: State) -> str | Action:
        answer = state.problem.answer
        replies: dict[int, str | Action] = {
            0: f"The answer is: {answer}",  # strict and lenient
            1: f"The answer is: {answer}",
            2: "The answer is: -1",  # parsed and wrong
            3: Action(f"It must be {answer}", finish="eos"),  # only lenient, unparsed
            4: Action("I do not know", finish="eos"),  # unparsed
            5: "hm",  # never ends: unparsed and cut off
            6: Action("", finish="eos"),  # silence
        }
        return replies[number(state)]

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
    def script(state: State) -> str | Action:
        right, sample = state.problem.answer, state.episode % 4
        given: dict[int, list[str | None]] = {
            0: [right, right, "1", "3"],  # most are right
            1: ["1", "1", right, "2"],  # most are wrong
            2: ["1", right, right, "1"],  # a tie, and the first given is wrong
            3: [right, "1", "1", right],  # a tie, and the first given is right
            4: [None, None, None, right],  # silence has no vote
            5: [None, None, None, None],
            6: ["1", "2", "3", "5"],
        }
        answers = given[number(state)]
        if answers[sample] is None:
            return Action("", finish="eos")
        return f"The answer is: {answers[sample]}"

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
    copies = [Problem("a", "  what   IS\n3 + 3? ", "6.0"), Problem("b", "What is 9999 + 1?", "10,000")]
    trained_on = [fingerprint(problem) for problem in copies]
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


def test_a_game_that_always_opens_alike_is_another_problem_with_another_answer():
    games = [Problem(f"guess/{number}", "Guess my number.", str(number)) for number in (1, 2, 3, 4)]
    assert overlap(games[:2], games[2:]) == set()
    assert overlap(games[:2], games[1:]) == {fingerprint(games[1])}
    result = evaluate(ScriptedPolicy(gold_line), MathEnv(games), [0, 1], trained_on=map(fingerprint, games[1:]))
    assert result.contaminated == 1
    assert held_out_indices(MathEnv(games), 1, avoid=games[2:]) == [0]
    assert held_out_indices(MathEnv(games), 4, avoid=games[2:]) == [0, 1]


@pytest.mark.parametrize("answer", ["", "6 apples", "the sixth", "7"])
def test_a_copy_that_states_its_answer_in_another_way_is_a_copy(answer):
    copy = Problem("copy", "What is 3 + 3?", answer)
    trained_on = {fingerprint(copy)}
    assert evaluate(ScriptedPolicy(gold_line), env(), range(5), trained_on=trained_on).contaminated == 1
    assert evaluate(ScriptedPolicy(gold_line), env(), range(2), trained_on=trained_on).contaminated == 0
    twice = [*PROBLEMS[:5], PROBLEMS[2]]  # asked twice, with one answer
    assert evaluate(ScriptedPolicy(gold_line), MathEnv(twice), range(6), trained_on=trained_on).contaminated == 2
    assert overlap(twice, [copy]) == {fingerprint(PROBLEMS[2])}
    assert held_out_indices(env(6), 3, avoid=[copy]) == [0, 1, 3]


def test_overlap_compares_texts_and_not_ids():
    copies = [Problem("other", "WHAT is  4 + 4?", "8"), Problem("sum/1", "Another question", "2")]
    assert overlap(copies, PROBLEMS) == {Fingerprint("what is 4 + 4?", "8")}


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
        def respond(self, state: State, text: str, finish: Finish) -> Response:
            return Response(reward=1.0 if text == state.problem.answer else 0.5, terminated=True)

    policy = ScriptedPolicy(lambda state: state.problem.answer if number(state) else "no")
    result = evaluate(policy, Game(PROBLEMS[:4]), range(4))
    assert result.solved == (0.0, 1.0, 1.0, 1.0)
    assert result.lenient == result.strict
    assert result.mean_reward == pytest.approx(3.5 / 4)
    assert result.unparsed == 0.0


def rewarded(scores: dict[int, float], graded: bool = False) -> Evaluation:
    """Problems that earn what is said, where nothing or everything is called right or wrong."""

    class Scored(Env):
        def respond(self, state: State, text: str, finish: Finish) -> Response:
            info = {"correct": scores[number(state)] > 0.5, "parsed": True} if graded else {}
            return Response(reward=scores[number(state)], terminated=True, info=info)

    return evaluate(ScriptedPolicy(lambda state: "yes"), Scored(PROBLEMS[: len(scores)]), range(len(scores)))


def test_where_nothing_is_right_or_wrong_the_reward_leads_and_nothing_is_called_strict():
    before = rewarded({0: 0.1, 1: 0.2, 2: 0.0, 3: 0.3, 4: 0.2, 5: 0.4})
    after = rewarded({0: 0.3, 1: 0.4, 2: 0.1, 3: 0.7, 4: 0.9, 5: 0.6})
    assert not after.is_graded
    assert after.reward == mean_interval([0.3, 0.4, 0.1, 0.7, 0.9, 0.6])
    assert evaluation_line(after).startswith(f"held-out mean reward {after.reward}, cut off")
    table = comparison_table({"before": before, "after": after})
    assert next(iter(table.columns[0].cells)) == "mean reward"
    assert next(iter(table.columns[2].cells)) == str(after.reward)
    assert paired_p_value(before, after) == pytest.approx(2 / 64)
    line = difference_line(before, after)
    assert line == "mean reward +0.300; paired permutation test on the same problems: p = 0.031"
    for text in (evaluation_line(after), line, " ".join(map(str, table.columns[0].cells)), str(table.title)):
        assert not any(word in text for word in ("strict", "lenient", "unparsed", "Wilson", "pass@"))
    saved = after.to_json()
    assert {"eval/strict", "eval/lenient", "eval/mean_reward", "solved"} <= saved.keys()  # what reads them goes on
    assert saved["eval/mean_reward_low"] < saved["eval/mean_reward"] < saved["eval/mean_reward_high"]
    assert saved["rewards"] == list(after.rewards)


def test_a_reward_of_ones_own_stands_beside_the_accuracy():
    scores = {0: 0.6, 1: 0.9, 2: 0.1, 3: 0.3}
    before, after = rewarded(dict.fromkeys(range(4), 0.25), graded=True), rewarded(scores, graded=True)
    assert after.strict == wilson(0.5, 4)
    assert f"strict {after.strict}" in evaluation_line(after)
    assert f"mean reward {after.reward}" in evaluation_line(after)
    rows = dict(zip(*(column.cells for column in comparison_table({"it": after}).columns), strict=True))
    assert rows["strict"] == str(after.strict)
    assert rows["mean reward"] == str(after.reward)
    first, second = difference_line(before, after).split("\n")
    assert first.startswith("strict accuracy +50.0 points; paired exact McNemar test")
    assert second.startswith("mean reward +0.225; paired permutation test")
    plain = evaluate(ScriptedPolicy(gold_line), env(), range(4))
    assert "reward" not in difference_line(plain, plain)  # the reward is the accuracy: one test says it


def test_the_difference_says_what_is_more_than_form():
    def script(replies: dict[int, str]) -> ScriptedPolicy:
        return ScriptedPolicy(lambda state: Action(replies[number(state)].format(state.problem.answer), finish="eos"))

    right, wrong, informal = "The answer is: {}", "The answer is: -1", "It must be {}"
    before = evaluate(script({0: right, 1: wrong, 2: informal, 3: informal, 4: "Hm."}), env(), range(5))
    after = evaluate(script({0: right, 1: right, 2: right, 3: right, 4: wrong}), env(), range(5))
    assert (before.parsed, before.solved_leniently) == ([1, 1, 0, 0, 0], [1, 0, 1, 1, 0])
    strict, lenient, parsed = difference_line(before, after).split("\n")
    assert strict.startswith("strict accuracy +60.0 points")
    assert lenient.startswith("lenient accuracy +20.0 points: p = 1")
    assert parsed == "of the 2 problems whose answer was parsed before: strict 50.0 % → 100.0 %"
    assert after.to_json()["parsed"] == [1.0] * 5


@pytest.mark.parametrize("graded", [True, False])
def test_the_learning_curve_shows_accuracy_or_reward(tmp_path, graded, monkeypatch):
    result = rewarded({0: 0.5, 1: 3.0}, graded)
    lines = [{"iteration": 1, "reward": 1.5, "accuracy": 0.5}, {"iteration": 1, **result.metrics()}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    figures = []
    monkeypatch.setattr(plotting, "new_figure", lambda *size: figures.append(new_figure(*size)) or figures[0])
    assert plotting.plot_learning_curve(tmp_path).is_file()
    assert figures[0].axes[0].get_ylabel() == ("accuracy" if graded else "mean reward")


@pytest.mark.parametrize(("indices", "samples"), [([], 1), ([0], 0)])
def test_nothing_to_evaluate_is_one_sentence(indices, samples):
    with pytest.raises(UserError, match="nothing to evaluate"):
        evaluate(ScriptedPolicy(gold_line), env(), indices, samples=samples)
