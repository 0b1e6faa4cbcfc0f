"""Self-play: two episodes play each other, each with its own conversation and reward; scripted opponents elsewhere."""

from __future__ import annotations

import pytest
from conftest import tiny_model
from gymnasium.utils.env_checker import check_env

import lmgym
from lmgym import UserError
from lmgym.algorithms.rloo import RLOO, RLOOConfig
from lmgym.buffer import Buffer
from lmgym.commands.cli import main
from lmgym.envs.games.game import last_line
from lmgym.envs.games.guess_number import first_number
from lmgym.envs.vector_env import VectorEnv
from lmgym.policies.policy_for import policy_for
from lmgym.policies.scripted_policy import ScriptedPolicy
from lmgym.types import Action, Episode


def played(env: lmgym.Env, play, indices, group_size: int) -> list[Episode]:
    envs, buffer, policy = VectorEnv(env), Buffer(), ScriptedPolicy(play)
    envs.reset(indices, group_size)
    while states := envs.states:
        buffer.add(envs.step(policy.next_actions(states)))
    return buffer.of_iteration(0)


def bisects(state):
    """Halves the range that is left after all guesses that this side has heard of."""
    low = state.problem.info["low"]
    high = low + 31
    for message in state.messages[1:]:
        words = message["content"].replace(":", "").split()
        if message["role"] == "assistant":
            mine = int(words[0])
            continue
        for guess, answer in ((mine, words[0]), (int(words[5]), words[6])):
            low, high = (max(low, guess + 1), high) if answer == "higher." else (low, min(high, guess - 1))
    return str((low + high) // 2)


def guesses_the_lowest(state):
    return str(state.problem.info["low"] + state.turn)


def test_each_side_has_its_own_conversation_and_reward():
    episodes = played(
        lmgym.make("number-race"),
        lambda state: bisects(state) if state.episode % 2 else guesses_the_lowest(state),
        range(12),
        group_size=2,
    )
    assert len(episodes) == 24
    wins = 0
    for first, second in zip(episodes[::2], episodes[1::2], strict=True):
        assert first.problem == second.problem
        assert len(first.steps) == len(second.steps)
        assert (first.reward, second.reward) in ((1, 0), (0, 1), (0.5, 0.5), (0, 0))
        wins += second.reward > first.reward
        for mine, theirs in zip(first.steps, second.steps, strict=True):
            assert f"The other player guessed {theirs.action.text}:" in mine.next_state.reply
            assert f"The other player guessed {mine.action.text}:" in theirs.next_state.reply
    assert wins >= 10


def test_equal_players_draw():
    for episode in played(lmgym.make("number-race"), bisects, range(6), group_size=4):
        assert (episode.reward, episode.info["draw"], episode.info["correct"]) == (0.5, True, False)


def test_a_player_who_is_cut_off_leaves_the_other_alone():
    envs = VectorEnv(lmgym.make("number-race", max_turns=2))
    envs.reset([0], group_size=2)
    secret = envs.states[0].problem.answer
    steps = envs.step([Action("1", episode=0), Action("I think that", episode=1, finish="length")])
    while len(steps) < 2:
        steps += envs.step([])
    assert [(step.truncated, step.terminated) for step in steps] == [(False, False), (True, False)]
    assert "The other player guessed nothing" in steps[0].next_state.reply
    (last,) = envs.step([Action(secret, episode=0)])
    assert (last.reward, last.terminated) == (1, True)


def test_a_lone_player_is_told_why():
    with pytest.raises(UserError, match="must be a multiple of 2"):
        played(lmgym.make("number-race"), bisects, [0], group_size=3)
    assert played(lmgym.make("number-race"), bisects, [0], group_size=2)[0].error is None


@pytest.mark.parametrize("opponent", ["bisection", "random"])
def test_a_scripted_opponent_plays_by_the_rules(opponent):
    env = lmgym.make("number-race", "test", opponent=opponent)
    check_env(env, skip_render_check=True)
    against_lowest = played(env, guesses_the_lowest, range(30), 1)
    against_bisection = played(env, bisects, range(30), 1)
    assert sum(episode.reward for episode in against_lowest) < sum(episode.reward for episode in against_bisection)
    if opponent == "bisection":
        assert all(episode.reward == 0.5 for episode in against_bisection)


def test_a_player_waits_for_the_other_however_long_that_takes():
    envs = VectorEnv(lmgym.make("number-race"))
    states = envs.reset([0, 1], group_size=2)
    assert envs.step([Action("1", episode=0), Action("2", episode=2)]) == []
    assert [state.episode for state in envs.states] == [1, 3]
    steps = envs.step([Action("3", episode=3)])
    assert [step.state.episode for step in steps] == [2, 3]
    assert "The other player guessed 3:" in steps[0].next_state.reply
    steps = envs.step([Action("4", episode=1)])
    assert [step.state.episode for step in steps] == [0, 1]
    assert len(envs.states) == len(states)


def test_the_command_of_the_docs_trains_and_resumes(model_folder, tmp_path):
    out = tmp_path / "run"
    flags = ["--model", str(model_folder), "--policy", "chat", "--shots", "0", "--max_tokens", "6", "--save_every", "1"]
    flags += ["--problems_per_iteration", "2", "--group_size", "4", "--eval_problems", "4"]
    main(["train", "rloo", "--env", "number-race", *flags, "--iterations", "1", "--out", str(out)])
    main(["train", "--resume", str(out), "--iterations", "2"])
    assert len(Buffer.load(out / "episodes.jsonl").episodes) == 16


def test_wrong_options_are_refused():
    with pytest.raises(UserError, match="no opponent 'me'"):
        lmgym.make("number-race", opponent="me")


def test_a_run_collects_both_sides_of_every_match():
    env = lmgym.make("number-race", max_turns=1)
    policy = policy_for(env, tiny_model(), policy="chat", shots=0, max_tokens=6)
    config = RLOOConfig(iterations=1, problems_per_iteration=4, group_size=8, eval_problems=0)
    algorithm = RLOO(policy, env, config)
    algorithm.train()
    episodes = algorithm.buffer.of_iteration(0)
    assert [episode.error for episode in episodes] == [None] * 32
    pairs = list(zip(episodes[::2], episodes[1::2], strict=True))
    for mine, theirs in (*pairs, *((second, first) for first, second in pairs)):
        heard = None if theirs.cut_off else first_number(last_line(theirs.text))
        shown = "nothing" if heard is None else str(heard)
        assert mine.cut_off or f"The other player guessed {shown}:" in mine.steps[0].next_state.reply
    assert any(not episode.cut_off for episode in episodes)
