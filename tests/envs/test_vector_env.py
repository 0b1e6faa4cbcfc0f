"""Many episodes at once: each on its own clock, with its own seed, and with its ids carried along."""

from __future__ import annotations

import gymnasium
import pytest

from lmgym.envs.env import Env, Response
from lmgym.envs.vector_env import VectorEnv
from lmgym.types import Action, Problem, State

PROBLEMS = [Problem(str(index), f"Count to {index + 1}.", str(index + 1)) for index in range(4)]


class Countdown(Env):
    """Problem i takes i + 1 steps; the reply tells a number drawn from the episode's own random source."""

    def respond(self, state: State, text: str, ended: bool) -> Response:
        over = state.turn >= int(state.problem.answer)
        drawn = int(self.np_random.integers(1_000_000))
        return Response(reward=float(state.turn), reply=f"drawn {drawn}", terminated=over)


def say(state: State, text: str = "go\n") -> Action:
    """Reads one id and writes two, all of which name the episode and the turn."""
    mark = 100 * state.episode + state.turn
    return Action(text, (*state.tokens, mark), (mark + 10, mark + 20), (-0.5, -0.5), (1, 1), episode=state.episode)


def play(envs: VectorEnv, states: list[State]):
    """Plays all episodes to their ends, as the loop does."""
    rounds = []
    while states:
        steps = envs.step([say(state) for state in states])
        rounds.append(steps)
        states = [step.next_state for step in steps if not step.done]
    return rounds


def test_episodes_of_different_lengths_leave_one_by_one():
    envs = VectorEnv(Countdown(PROBLEMS))
    rounds = play(envs, envs.reset([2, 0, 1]))
    assert [[step.state.episode for step in steps] for steps in rounds] == [[0, 1, 2], [0, 2], [0]]
    assert [[step.state.turn for step in steps] for steps in rounds] == [[0, 0, 0], [1, 1], [2]]
    assert [[step.terminated for step in steps] for steps in rounds] == [[False, True, False], [False, True], [True]]
    assert rounds[-1][0].next_state.messages[-2]["content"] == "go"


def test_each_episode_waits_where_it_is_until_its_own_action_comes():
    envs = VectorEnv(Countdown(PROBLEMS))
    states = envs.reset([2, 0, 1])
    assert envs.states == states
    envs.step([say(states[2])])
    assert [(state.episode, state.turn) for state in envs.states] == [(0, 0), (1, 0), (2, 1)]
    assert envs.states[0] is states[0], "an episode that did not move is the same state still"
    envs.step([say(envs.states[1]), say(envs.states[0])])
    assert sorted((state.episode, state.turn) for state in envs.states) == [(0, 1), (2, 1)]
    assert all(state.tokens for state in envs.states)
    with pytest.raises(KeyError):
        envs.step([say(states[1])])
    assert [state.problem.id for state in envs.reset([3])] == ["3"]
    assert len(envs.states) == 1


def test_episodes_of_one_problem_form_a_group_with_different_seeds():
    envs = VectorEnv(Countdown(PROBLEMS))
    states = envs.reset([3, 1], group_size=3, seed=5)
    assert [state.problem.id for state in states] == ["3", "3", "3", "1", "1", "1"]
    assert [state.group for state in states] == [0, 0, 0, 1, 1, 1]
    assert [state.episode for state in states] == list(range(6))
    assert len({state.seed for state in states}) == 6
    assert {step.next_state.group for steps in play(envs, states)[1:] for step in steps if step.state.episode < 3} == {
        0
    }


def test_one_problem_twice_is_two_groups():
    envs = VectorEnv(Countdown(PROBLEMS))
    assert [state.group for state in envs.reset([1, 1], group_size=2)] == [0, 0, 1, 1]


def test_the_same_seed_gives_the_same_episodes_and_another_seed_others():
    envs = VectorEnv(Countdown(PROBLEMS))
    runs = [play(envs, envs.reset([1, 2], 2, seed=seed)) for seed in (7, 7, 8)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    replies = {step.next_state.reply for step in runs[0][0]}
    assert len(replies) == 4  # each clone draws from its own source


def test_ids_are_carried_from_turn_to_turn_and_the_environment_never_sees_them():
    class Nosy(Countdown):
        def respond(self, state: State, text: str, ended: bool) -> Response:
            assert state.tokens == self.state.tokens == ()
            return super().respond(state, text, ended)

    envs = VectorEnv(Nosy(PROBLEMS))
    rounds = play(envs, envs.reset([0, 1]))
    second = rounds[1][0]
    assert second.state.tokens == (100, 110, 120)
    assert second.action.prompt_ids == (100, 110, 120, 101)
    assert second.next_state.tokens == (100, 110, 120, 101, 111, 121)


def test_some_episodes_may_act_while_others_wait_and_in_any_order():
    envs = VectorEnv(Countdown(PROBLEMS))
    first, second, third = envs.reset([1, 1, 1])
    ahead = envs.step([say(third), say(first)])
    assert [step.state.episode for step in ahead] == [2, 0]
    ahead = envs.step([say(ahead[0].next_state)])
    assert ahead[0].done
    assert not envs.step([say(second)])[0].done


def test_an_episode_that_is_over_does_not_begin_again():
    envs = VectorEnv(Countdown(PROBLEMS))
    (state,) = envs.reset([0])
    assert envs.step([say(state)])[0].done
    with pytest.raises(KeyError):
        envs.step([say(state)])


def test_a_reset_ends_what_was_going_on_and_leaves_the_given_environment_alone():
    env = Countdown(PROBLEMS)
    waiting, _ = env.reset(options={"index": 3})
    envs = VectorEnv(env)
    envs.reset([1, 1, 1])
    assert len(envs.reset([2])) == 1
    play(envs, envs.reset([2]))
    assert env.state is waiting


def test_an_environment_that_gymnasium_wrapped_is_unwrapped():
    import lmgym  # noqa: F401 — registers the names

    envs = VectorEnv(gymnasium.make("lmgym/Arithmetic-v0"))
    (state,) = envs.reset([0])
    assert envs.step([Action("The answer is: 1", episode=state.episode)])[0].terminated
