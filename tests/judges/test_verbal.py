"""Judges: what they ask, what they make of the answers, and where the rewards go."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import tiny_model

from lmgym.errors import UserError
from lmgym.judges.questions import asking, filled, load_judge_prompt
from lmgym.judges.verbal import (
    AnswerVerbalReward,
    EpisodeVerbalReward,
    GroupVerbalReward,
    MultiDimensionVerbalReward,
    StepwiseVerbalReward,
)
from lmgym.types import Action, Episode, Problem, State, Step

PROBLEM = Problem("p", "What is 2+3? {step}", "5")


def episode(*texts: str, group: int = 0, reward: float = 1.0, correct: bool = True) -> Episode:
    state = State(PROBLEM, ({"role": "user", "content": PROBLEM.prompt},), group=group)
    steps = [Step(state, Action(text), 0.0, False, False, {}, state) for text in texts]
    steps[-1] = replace(steps[-1], reward=reward, terminated=True, info={"correct": correct})
    return Episode(tuple(steps))


class Recorder:
    """Answers by a rule and remembers what it was asked."""

    def __init__(self, rule):
        self.rule = rule
        self.asked: list[str] = []
        self.batches = 0

    def __call__(self, chats, answers):
        self.batches += 1
        self.asked += [chat[-1]["content"] for chat in chats]
        rows = [torch.tensor([self.rule(chat[-1]["content"], answer) for answer in answers]) for chat in chats]
        return torch.stack(rows) / torch.stack(rows).sum(-1, keepdim=True)


def test_a_step_gets_the_expected_number():
    ask = Recorder(
        lambda question, answer: {"10": 0.5, "1": 0.5}.get(answer, 0.0) if "bad" in question else float(answer == "10")
    )
    judged = StepwiseVerbalReward(ask, weight=0.5).judged([episode("good\n", "fine"), episode("It is bad")])
    assert [each.rewards for each in judged] == [(0.5, 1.5), (1.25,)]
    assert judged[0].info["rewards"] == {"step": 1.0}
    assert judged[1].info == {"correct": True, "rewards": {"step": 0.5}}
    assert ask.batches == 1
    assert "(nothing yet)\n\nThe next step:\ngood" in ask.asked[0]
    assert "good\n\nThe next step:\nfine" in ask.asked[1]
    assert "What is 2+3? {step}" in ask.asked[0]


def test_dimensions_are_averaged_and_the_environment_rewards_the_right_answer():
    ask = Recorder(lambda question, answer: float((answer == "yes") == ("correct?" in question)))
    judged = MultiDimensionVerbalReward(ask, weight=0.5).judged([episode("a\n", "b"), episode("c", reward=0)])
    assert judged[0].rewards == pytest.approx((1 / 6, 1 / 6 + 1))
    assert judged[1].rewards == pytest.approx((1 / 6,))
    assert len(ask.asked) == 9


def test_a_whole_episode_is_judged_at_its_end():
    ask = Recorder(lambda question, answer: float(answer == "10"))
    judged = EpisodeVerbalReward(ask).judged([episode("a\n", "b", reward=0)])
    assert judged[0].rewards == (0, 1)
    assert "a\nb" in ask.asked[0]


def test_a_solution_is_compared_with_the_reference_answer():
    ask = Recorder(lambda question, answer: 0.8 if (answer == "yes") == ("Solution:\na\nb" in question) else 0.2)
    judged = AnswerVerbalReward(ask, weight=2).judged([episode("a\n", "b", reward=0), episode("c", reward=0)])
    assert [each.rewards for each in judged] == [pytest.approx((0, 1.6)), pytest.approx((0.4,))]
    assert f"Reference answer: {judged[0].problem.answer}\n" in ask.asked[0]


def test_a_group_is_compared_in_both_orders():
    """A judge that always says A has no opinion: every sample of two gets the same."""
    always_first = Recorder(lambda question, answer: float(answer == "A"))
    judged = GroupVerbalReward(always_first).judged([episode("x", reward=0), episode("y", reward=0)])
    assert [each.reward for each in judged] == [0.5, 0.5]
    likes_x = Recorder(lambda question, answer: float(f"{answer}:\nx" in question))
    groups = [
        episode("x", reward=0),
        episode("y", reward=0),
        episode("y", group=1, reward=0),
        episode("x", group=1, reward=0),
    ]
    assert [each.reward for each in GroupVerbalReward(likes_x).judged(groups)] == [1, 0, 0, 1]


def test_a_real_model_judges_between_0_and_1():
    ask = asking(tiny_model(size=32))
    episodes = [episode("2+3\n", "= 5", reward=0), episode("no idea", reward=0)]
    for judge in (
        StepwiseVerbalReward(ask),
        MultiDimensionVerbalReward(ask),
        EpisodeVerbalReward(ask),
        GroupVerbalReward(ask),
    ):
        for scores in judge.scores(episodes):
            assert all(0 <= score <= 1 for score in scores)


def test_a_prompt_may_be_a_file_of_ones_own(tmp_path):
    (tmp_path / "mine.txt").write_text("Is {step} polite?")
    template = load_judge_prompt(str(tmp_path / "mine.txt"), ("before", "step"))
    assert filled(template, step="{x}")[0]["content"] == "Is {x} polite?"
    with pytest.raises(UserError, match=r"lacks \{solution\}"):
        load_judge_prompt(str(tmp_path / "mine.txt"), ("step", "solution"))
    with pytest.raises(UserError, match=r"has \{step\}, which this judge does not know"):
        load_judge_prompt(str(tmp_path / "mine.txt"), ("solution",))
    with pytest.raises(UserError, match="no prompt"):
        load_judge_prompt("nothing", ("step",))


def test_a_file_of_the_same_name_does_not_replace_a_shipped_prompt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step").write_text("{step}? Notes of mine.")
    assert "Notes of mine" not in StepwiseVerbalReward(lambda chats, answers: torch.zeros(0)).templates[0]
