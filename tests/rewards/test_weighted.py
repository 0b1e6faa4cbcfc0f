"""Weighted sums of rewards: their syntax, their parts in episodes and metrics, and rewards in TRL's form."""

from __future__ import annotations

import json

import pytest
from conftest import tiny_network, tiny_tokenizer
from hypothesis import given
from hypothesis import strategies as st

import lmgym
from lmgym import Problem, UserError
from lmgym.buffer import Buffer
from lmgym.commands.cli import main
from lmgym.envs.math_env import MathEnv
from lmgym.rewards.custom import load_reward, spelled_reward
from lmgym.rewards.final_answer import NumberAnswer
from lmgym.rewards.text_form import Length, Overlong, Repetition
from lmgym.rewards.weighted import WeightedReward, parse_weighted
from lmgym.types import Action

PROBLEM = Problem(id="1", prompt="2+3?", answer="5", solution="The answer is: 5", info={"topic": "sums"})

OWN = """
def half(problem, text):
    return 0.5

async def waits(problem, text):
    import asyncio
    await asyncio.sleep(0)
    return float(len(text))

def of_trl(prompts, completions, answer, **columns):
    assert columns["topic"] == ["sums"]
    return [float(right in said) for right, said in zip(answer, completions)]

async def of_trl_async(prompts, completions, **columns):
    return [0.25 for _ in completions]

def of_trl_none(completions, prompts, **columns):
    return [None]
"""


@pytest.fixture(autouse=True)
def own_module(tmp_path, monkeypatch):
    (tmp_path / "weighted_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))


def bound(expression: str) -> WeightedReward:
    reward = load_reward(expression)
    assert isinstance(reward, WeightedReward)
    return reward.with_form(NumberAnswer())


@pytest.mark.parametrize(
    ("expression", "right", "wrong"),
    [
        ("correct", 1.0, 0.0),
        ("correct + 0.1*form", 1.1, 0.1),
        ("correct - 0.5*weighted_own:half", 0.75, -0.25),
        ("2*correct+.5*form", 2.5, 0.5),
        ("-correct", -1.0, 0.0),
        ("correct + overlong(2,4)", 0.5, -0.5),
    ],
)
def test_a_sum_is_what_it_says(expression, right, wrong):
    reward = bound(expression)
    assert reward(PROBLEM, "The answer is: 5") == pytest.approx(right)
    assert reward(PROBLEM, "The answer is: 6") == pytest.approx(wrong)
    assert spelled_reward(reward) == expression
    assert bound(str(spelled_reward(reward))) == reward


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("corect + form", "did you mean correct"),
        ("correct form", "cannot be read at 'form'"),
        ("correct + 0.1", "cannot be read"),
        ("correct + correct", "twice"),
        ("overlong(1,2,3)", "cannot be made"),
        ("correct + weighted_own:none", "has no 'none'"),
        (" ", "is empty"),
    ],
)
def test_a_mistake_gets_one_sentence(expression, said):
    with pytest.raises(UserError, match=said.replace("(", r"\(")):
        load_reward(expression)


def test_functions_may_wait_or_have_the_form_of_trl():
    assert load_reward("weighted_own:waits")(PROBLEM, "abc") == 3
    assert load_reward("weighted_own:of_trl")(PROBLEM, "It is 5") == 1
    assert load_reward("weighted_own:of_trl")(PROBLEM, "It is 6") == 0
    assert load_reward("weighted_own:of_trl_async")(PROBLEM, "") == 0.25
    assert load_reward("weighted_own:of_trl_none")(PROBLEM, "") == 0
    assert spelled_reward(load_reward("weighted_own:of_trl")) == "weighted_own:of_trl"


@given(st.lists(st.sampled_from("abcd"), max_size=60))
def test_rewards_of_the_text_have_their_bounds(words):
    text = " ".join(words)
    assert -1 <= Repetition()(PROBLEM, text) <= 0
    assert -1 <= Overlong(10, 20)(PROBLEM, text) <= 0
    assert Length(1)(PROBLEM, text) == len(words)
    assert Overlong(len(words), 5)(PROBLEM, text) == 0


def test_repetition_counts_what_came_before():
    assert Repetition(1)(PROBLEM, "a b c d") == 0
    assert Repetition(1)(PROBLEM, "a a a a") == -0.75


def test_the_parts_are_in_the_episode():
    env = MathEnv([PROBLEM], reward=load_reward("correct + 0.5*form"))
    env.reset(options={"index": 0})
    *_, reward, _terminated, _truncated, info = env.step(Action("The answer is: 6", finish="stop"))
    assert reward == 0.5
    assert info["rewards"] == {"correct": 0.0, "form": 1.0}


def test_the_parts_are_in_the_metrics_and_a_run_is_resumed_with_them(tmp_path):
    tiny_network(size=32).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    flags = ["--model", str(tmp_path / "model"), "--env", "arithmetic", "--shots", "0", "--max_tokens", "8"]
    flags += ["--problems_per_iteration", "2", "--group_size", "2", "--eval_problems", "2", "--save_every", "1"]
    out = tmp_path / "run"
    main(["train", "rloo", *flags, "--iterations", "1", "--reward", "correct + 0.1*length(10)", "--out", str(out)])
    main(["train", "--resume", str(out), "--iterations", "2"])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    learnt = [row for row in rows if "reward" in row]
    assert len(learnt) == 2
    for row in learnt:
        assert row["reward"] == pytest.approx(row["reward/correct"] + 0.1 * row["reward/length"])
    episode = json.loads((out / "episodes.jsonl").read_text().splitlines()[0])
    assert set(episode["steps"][-1]["info"]["rewards"]) == {"correct", "length"}


def test_every_maths_environment_takes_a_sum():
    for name in ("arithmetic", "word-problems"):
        env = lmgym.make(name, reward=load_reward("correct + 0.1*form"))
        assert isinstance(env, MathEnv)
        assert isinstance(env.reward, WeightedReward)


def test_a_weight_may_change_over_the_iterations(model_folder, tmp_path):
    """The parts stay what they are; the reward of an episode is their sum with the weights of its iteration."""
    reward = "1->0@2*length(1) - 0->0.5@1*repetition"
    terms = parse_weighted(reward, load_reward).terms
    assert [terms[0].weight_at(iteration) for iteration in (0, 1, 2, 5)] == [1, 0.5, 0, 0]
    assert [terms[1].weight_at(iteration) for iteration in (0, 1, 2)] == [0, -0.5, -0.5]
    flags = ["--model", str(model_folder), "--env", "arithmetic", "--shots", "0", "--max_tokens", "40"]
    flags += ["--eval_problems", "0", "--problems_per_iteration", "2", "--group_size", "4", "--iterations", "3"]
    main(
        ["train", "grpo", *flags, "--reward", reward, "--env_options", "turn_limit", "9", "--out", str(tmp_path / "r")]
    )
    episodes = list(Buffer.load(tmp_path / "r" / "episodes.jsonl").episodes)
    assert len(episodes) == 24
    for episode in episodes:
        weights = [term.weight_at(episode.iteration) for term in terms]
        parts = episode.info["rewards"]
        assert episode.reward == pytest.approx(weights[0] * parts["length"] + weights[1] * parts["repetition"])
    assert {episode.reward != 0 for episode in episodes if episode.iteration == 0} == {True}
