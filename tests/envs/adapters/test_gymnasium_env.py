"""Environments of Gymnasium in text, against Gymnasium itself."""

from __future__ import annotations

import gymnasium
import pytest

import lmgym
from lmgym import UserError
from lmgym.envs.adapters.gymnasium_env import ACTION_NAMES, GymnasiumEnv
from lmgym.evaluation.contamination import are_copies, fingerprint


def test_frozen_lake_is_won_by_walking_round_the_holes():
    env = lmgym.make("gymnasium/FrozenLake-v1", is_slippery=False)
    state, _ = env.reset(options={"index": 0})
    assert state.messages[0]["content"] == "FrozenLake-v1:\n[S]FFF\nFHFH\nFFFH\nHFFG"
    for move in ("down", "down", "right", "right", "down"):
        state, reward, terminated, truncated, _ = env.step(f"I go\n{move}")
        assert (reward, terminated, truncated) == (0, False, False)
    state, reward, terminated, *_ = env.step("right")
    assert (reward, terminated) == (1, True)
    assert state.reply.endswith("HFF[G]")


@pytest.mark.parametrize("name", ["CartPole-v1", "MountainCar-v0", "Taxi-v4", "CliffWalking-v1", "Blackjack-v1"])
def test_rewards_are_those_of_the_environment_itself(name):
    env = lmgym.make(f"gymnasium/{name}")
    state, _ = env.reset(options={"index": 5})
    own = gymnasium.make(name)
    own.reset(seed=state.problem.info["seed"])
    for turn in range(20):
        action = turn % len(ACTION_NAMES[name])
        _, reward, terminated, *_ = env.step(ACTION_NAMES[name][action])
        _, own_reward, own_terminated, *_ = own.step(action)
        assert (reward, terminated) == (own_reward, own_terminated)
        if terminated:
            break


def test_a_text_that_names_no_action_or_two_costs_a_turn():
    env = lmgym.make("gymnasium/FrozenLake-v1", max_turns=2)
    env.reset(options={"index": 0})
    state, reward, terminated, truncated, info = env.step("left or right")
    assert (reward, terminated, truncated, info["valid"]) == (0, False, False, False)
    assert state.reply == "Write only one of these actions: left, down, right, up."
    assert env.step("")[3]


def test_episodes_do_not_share_a_game():
    env = lmgym.make("gymnasium/CartPole-v1")
    assert isinstance(env, GymnasiumEnv)
    one, two = env.clone(), env.clone()
    one.reset(options={"index": 1})
    two.reset(options={"index": 2})
    assert one.inner is not two.inner
    first = one.step("left")[0].reply
    two.step("right")
    again = env.clone()
    again.reset(options={"index": 1})
    assert again.step("left")[0].reply == first


def test_seeds_of_another_split_are_no_copies():
    trained = [fingerprint(problem) for problem in lmgym.make("gymnasium/FrozenLake-v1").problems[:50]]
    evaluated = lmgym.make("gymnasium/FrozenLake-v1", split="test").problems[:50]
    assert not any(are_copies(evaluated, trained))


def test_one_may_bring_a_renderer_and_names_of_ones_own():
    env = lmgym.make(
        "gymnasium/CartPole-v1", observation_text=lambda seen: f"angle {seen[2]:.1f}", actions=("push", "pull")
    )
    state, _ = env.reset(options={"index": 0})
    assert "angle" in state.messages[0]["content"]
    assert env.step("pull")[1] == 1


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("gymnasium/Pendulum-v1", {}, "only discrete ones"),
        ("gymnasium/NoSuchEnv-v1", {}, "cannot be made"),
        ("gymnasium/CartPole-v1", {"nonsense": 1}, "cannot be made"),
        ("gymnasium/CartPole-v1", {"actions": ("one",)}, "2 actions, but 1 names"),
    ],
)
def test_a_mistake_gets_one_sentence(name, options, said):
    with pytest.raises(UserError, match=said):
        lmgym.make(name, **options)
