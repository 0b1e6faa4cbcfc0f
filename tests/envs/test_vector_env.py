"""Many episodes at once: each on its own clock, with its own seed, and with its ids carried along."""

from __future__ import annotations

import random
import re
import threading
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from lmgym.envs.env import Env, Response, StateSpace
from lmgym.envs.math_env import MathEnv
from lmgym.envs.vector_env import VectorEnv
from lmgym.errors import UserError
from lmgym.types import Action, Finish, Problem, State

PROBLEMS = [Problem(str(index), f"Count to {index + 1}.", str(index + 1)) for index in range(4)]


class Countdown(Env):
    """Problem i takes i + 1 steps; the reply tells a number drawn from the episode's own random source."""

    def respond(self, state: State, text: str, finish: Finish) -> Response:
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
        def respond(self, state: State, text: str, finish: Finish) -> Response:
            assert state.tokens == self.state.tokens == ()
            return super().respond(state, text, finish)

    envs = VectorEnv(Nosy(PROBLEMS))
    rounds = play(envs, envs.reset([0, 1]))
    second = rounds[1][0]
    assert second.state.tokens == (100, 110, 120)
    assert second.action.prompt_ids == (100, 110, 120, 101)
    assert second.next_state.tokens == (100, 110, 120, 101, 111, 121)


def test_a_plain_gym_loop_continues_the_sampled_ids_too():
    env = Countdown(PROBLEMS)
    state, _ = env.reset(options={"index": 2})
    state, *_ = env.step(say(state))
    assert state.tokens == (0, 10, 20)
    state, *_ = env.step(say(state))
    assert state.tokens == (0, 10, 20, 1, 11, 21)
    assert env.state.tokens == ()


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


class Game:
    """A game with state of its own, some of it nested."""

    def __init__(self) -> None:
        self.moves: list[str] = []
        self.board = {"cells": [["."] * 2 for _ in range(2)]}


class OneGame(Env):
    """An environment whose author made the game in `__init__` and never again."""

    def __init__(self, problems=PROBLEMS) -> None:
        super().__init__(problems)
        self.game = Game()
        self.same_game = [self.game]
        self.by_id = {problem.id: problem for problem in problems}
        self.scorer = self.score

    def score(self) -> float:
        return float(len(self.game.moves))

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        assert self.same_game[0] is self.game
        self.game.moves.append(text)
        self.game.board["cells"][0][0] += text
        return Response(self.scorer(), reply=f"{self.game.moves} {self.game.board['cells'][0][0]}", terminated=True)


def one_move_each(envs: VectorEnv) -> list[tuple[float, str]]:
    steps = envs.step([Action(f"m{state.episode}", episode=state.episode) for state in envs.reset([0, 0, 1])])
    return [(step.reward, step.next_state.reply) for step in steps]


EACH_ITS_OWN = [(1.0, "['m0'] .m0"), (1.0, "['m1'] .m1"), (1.0, "['m2'] .m2")]


def test_every_episode_has_a_game_of_its_own_though_the_author_made_one():
    env = OneGame()
    envs = VectorEnv(env)
    assert one_move_each(envs) == EACH_ITS_OWN
    assert one_move_each(envs) == EACH_ITS_OWN, "and nothing is left of the episodes before"
    assert env.game.moves == []


def test_a_wrapped_environment_gives_every_episode_a_game_of_its_own():
    gymnasium.register("lmgym-test/OneGame-v0", entry_point=OneGame)  # type: ignore[arg-type]
    wrapped: Any = gymnasium.make("lmgym-test/OneGame-v0")
    assert one_move_each(VectorEnv(wrapped)) == EACH_ITS_OWN


def test_clones_share_problems_graders_and_rewards():
    twin = OneGame().clone()
    assert twin.problems is PROBLEMS
    assert isinstance(twin.observation_space, StateSpace)
    assert twin.observation_space.problems is PROBLEMS
    assert all(twin.by_id[problem.id] is problem for problem in PROBLEMS)

    class Judge:
        def __call__(self, problem: Problem, text: str) -> float:
            return 0.0

        def __deepcopy__(self, memo):
            raise AssertionError("a reward model is not copied for each episode")

    env = MathEnv(PROBLEMS, reward=Judge(), step_reward=lambda state, text, next_state: 0.0)
    assert (env.clone().reward, env.clone().step_reward) == (env.reward, env.step_reward)


def test_what_cannot_be_copied_is_named_and_may_be_shared():
    class Locked(Countdown):
        def __init__(self, problems) -> None:
            super().__init__(problems)
            self.tools = {"lock": threading.Lock()}

    with pytest.raises(UserError, match=r"Locked cannot run .* attribute 'tools' cannot be copied .*opening\(\)"):
        VectorEnv(Locked(PROBLEMS)).reset([0])

    class Shared(Locked):
        shared_attributes = (*Countdown.shared_attributes, "tools")

    env = Shared(PROBLEMS)
    assert env.clone().tools is env.tools


class Deck:
    """Something of an author's that holds a random source."""

    def __init__(self, source: random.Random) -> None:
        self.source = source


class Drawing(Countdown):
    """Draws from every kind of random source that an author may have made."""

    def __init__(self) -> None:
        super().__init__(PROBLEMS)
        self.rng = random.Random(0)
        self.generator = np.random.default_rng(0)
        self.state_of_old = np.random.RandomState(0)
        self.another_old = np.random.RandomState(np.random.PCG64(0))
        self.torch_generator = torch.Generator().manual_seed(0)
        self.decks = {"own": Deck(random.Random(0)), "same": Deck(self.rng)}

    def opening(self, problem: Problem) -> str:
        assert self.decks["same"].source is self.rng
        drawn = (
            self.rng.random(),
            self.generator.random(),
            self.state_of_old.normal(),
            self.another_old.random(),
            torch.rand(1, generator=self.torch_generator).item(),
            self.decks["own"].source.random(),
        )
        return " ".join(map(str, drawn))


def test_random_sources_of_an_author_are_a_stream_per_episode_that_its_seed_decides():
    envs = VectorEnv(Drawing())

    def openings(seed: int) -> list[list[str]]:
        return [state.messages[0]["content"].split() for state in envs.reset([0, 1], 3, seed)]

    first, other, again = openings(0), openings(1), openings(0)
    assert first == again
    for drawn in zip(*first, *other, strict=True):
        assert len(set(drawn)) == 12
    assert len({number for drawn in first for number in drawn}) == 6 * 6  # no two sources draw the same


def test_a_seed_decides_the_sources_of_an_environment_and_of_its_clone_alike():
    env = Drawing()
    seeded = [one.reset(seed=5, options={"index": 0})[0].messages[0]["content"].split() for one in (env, env.clone())]
    assert seeded[0][:5] == seeded[1][:5]
    going_on = env.reset(options={"index": 0})[0].messages[0]["content"].split()
    assert not set(going_on) & set(seeded[0])


def test_a_shared_random_source_is_left_as_it_is():
    class Sharing(Drawing):
        shared_attributes = (*Countdown.shared_attributes, "generator")
        opening = Countdown.opening

    env = Sharing()
    twin = env.clone()
    before = env.generator.bit_generator.state
    twin.reset(seed=3)
    assert twin.generator is env.generator
    assert env.generator.bit_generator.state == before


@pytest.mark.parametrize(
    "large", [{str(i): [i] for i in range(20_000)}, np.zeros(200_000), torch.zeros(400_000), [0] * 200_000]
)
def test_an_attribute_that_is_large_to_copy_is_named_once(large):
    class Large(Countdown):
        def __init__(self) -> None:
            super().__init__(PROBLEMS)
            self.small = {str(i): i for i in range(100)}
            self.words = large

    class Sharing(Large):
        shared_attributes = (*Countdown.shared_attributes, "words")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        VectorEnv(Large()).reset([0, 1, 2])
        VectorEnv(Sharing()).reset([0, 1, 2])
    assert len(caught) == 1
    said = r"Large copies its attribute 'words', \d MB, for every episode; list it in shared_attributes"
    assert re.search(said, str(caught[0].message))


def test_an_environment_of_numbers_is_refused():
    numbers: Any = gymnasium.make("CartPole-v1")
    with pytest.raises(UserError, match="CartPoleEnv is not a text environment"):
        VectorEnv(numbers)


def test_an_environment_that_gymnasium_wrapped_is_unwrapped():
    import lmgym  # noqa: F401 — registers the names

    wrapped: Any = gymnasium.make("lmgym/Arithmetic-v0")
    envs = VectorEnv(wrapped)
    (state,) = envs.reset([0])
    assert envs.step([Action("The answer is: 1", episode=state.episode)])[0].terminated


class Together(Countdown):
    """Responds only when four episodes are being stepped at the same time; counts how many are."""

    concurrency = 4
    shared_attributes = (*Env.shared_attributes, "barrier", "active", "most")

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        self.barrier = threading.Barrier(4)
        self.active: list[int] = []
        self.most = [0]

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        self.active.append(1)
        self.most[0] = max(self.most[0], len(self.active))
        self.barrier.wait(timeout=20)
        self.active.pop()
        return super().respond(state, text, finish)


def test_an_environment_that_waits_is_stepped_for_several_episodes_at_once():
    envs = VectorEnv(Together([PROBLEMS[0]]))
    envs.reset([0], group_size=12, seed=3)
    steps = []
    while states := envs.states:
        steps += envs.step([say(state) for state in states])
    assert sorted(step.state.episode for step in steps) == list(range(12))
    assert isinstance(envs.env, Together)
    assert envs.env.most == [4]


class Waiting(Countdown):
    concurrency = 3


def test_threads_change_no_step():
    def played(env: Env) -> dict[tuple[int, int], tuple[float, str, bool]]:
        envs, found = VectorEnv(env), {}
        envs.reset([0, 1, 2, 3], group_size=3, seed=7)
        while states := envs.states:
            for step in envs.step([say(state) for state in states]):
                found[step.state.episode, step.state.turn] = step.reward, step.next_state.reply, step.done
        return found

    assert played(Waiting(PROBLEMS)) == played(Countdown(PROBLEMS))
