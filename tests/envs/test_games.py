"""The games: each can be won by its own solution, none by nonsense, and their splits are disjoint."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmgym
from lmgym.envs.games.game import Game, last_line
from lmgym.envs.games.maze import Maze
from lmgym.envs.games.twenty_questions import TRAITS, WORLD
from lmgym.envs.games.word_guess import WORDS, marks
from lmgym.envs.procedural import ProceduralProblems
from lmgym.types import Action

GAMES = ("countdown", "guess-number", "maze", "twenty-questions", "word-guess")
seeds = st.integers(0, 2**31 - 1)


def game(name: str, **options) -> Game:
    env = lmgym.make(name, **options).unwrapped
    assert isinstance(env, Game)
    return env


def play(env: Game, index: int, moves: list[str]):
    """The rewards, the last info, and whether the game is over."""
    env.reset(options={"index": index})
    rewards: list[float] = []
    info: dict[str, Any] = {}
    over = False
    for move in moves:
        _, reward, terminated, truncated, info = env.step(Action(move, finish="stop"))
        rewards.append(reward)
        over = terminated or truncated
        if over:
            break
    return rewards, info, over


@pytest.mark.parametrize("name", GAMES)
@given(index=seeds)
@settings(max_examples=30, deadline=None)
def test_its_own_solution_wins(name, index):
    env = game(name)
    rewards, info, over = play(env, index, env.problems[index].solution.split("\n"))
    assert over
    assert info["correct"]
    assert rewards[-1] == 1
    assert sum(rewards) == 1
    assert info["turns"] == len(rewards) <= env.max_turns


@pytest.mark.parametrize("name", GAMES)
@given(index=seeds, moves=st.lists(st.text(max_size=30), min_size=20, max_size=20))
@settings(max_examples=30, deadline=None)
def test_any_text_is_a_move_and_a_game_ends(name, index, moves):
    env = game(name)
    rewards, info, over = play(env, index, moves)
    assert over
    assert len(rewards) <= env.max_turns
    assert info["correct"] == (sum(rewards) > 0)


@pytest.mark.parametrize("name", GAMES)
def test_what_a_player_may_know_is_in_one_split_only(name):
    keys = {}
    for split in ("train", "validation", "test"):
        problems = game(name, split=split).problems
        assert isinstance(problems, ProceduralProblems)
        keys[split] = {problems.split_key(problems[i]) for i in range(60)}
    assert all(len(found) > 20 for found in keys.values())
    assert not (keys["train"] & keys["test"] | keys["train"] & keys["validation"] | keys["validation"] & keys["test"])


def test_thinking_before_the_move_is_allowed():
    assert last_line("I think\nit is\n 7 \n\n") == "7"
    assert last_line("") == ""
    env = game("guess-number")
    _, info, over = play(env, 3, [f"Between both there is\n{env.problems[3].answer}"])
    assert over
    assert info["correct"]


def test_a_fast_win_is_worth_more_if_that_is_asked_for():
    env = game("guess-number", speed_bonus=0.5, max_turns=6)
    right = env.problems[0].answer
    assert play(env, 0, [right])[0] == [1.5]
    assert play(env, 0, ["0", right])[0] == [0, 1.4]
    assert play(env, 0, ["0"] * 5 + [right])[0][-1] == 1.0


def test_an_answer_that_is_cut_off_loses():
    env = game("guess-number")
    env.reset(options={"index": 0})
    *_, terminated, truncated, info = env.step(Action("12", finish="length"))
    assert (terminated, truncated, info["correct"]) == (False, True, False)


@pytest.mark.parametrize(
    ("move", "reply"),
    [
        ("7*7", "Use each of the numbers at most once, and no others."),
        ("__import__('os')", "That is not an expression of the numbers with + - * / and brackets."),
        ("(((", "That is not an expression of the numbers with + - * / and brackets."),
    ],
)
def test_countdown_refuses_other_numbers_and_code(move, reply):
    env = game("countdown")
    index = next(i for i in range(100) if 7 not in env.problems[i].info["numbers"])
    env.reset(options={"index": index})
    state, *_, info = env.step(Action(move, finish="stop"))
    assert state.reply == reply
    assert not info["valid"]


@given(st.sampled_from(WORDS), st.sampled_from(WORDS))
def test_marks_are_those_of_the_rules(word, guess):
    found = marks(word, guess)
    assert all((mark == "G") == (letter == other) for mark, letter, other in zip(found, word, guess, strict=True))
    marked = Counter(letter for letter, mark in zip(guess, found, strict=True) if mark != "-")
    assert all(marked[letter] == min(Counter(word)[letter], Counter(guess)[letter]) for letter in guess)


def test_words_are_distinct_and_have_five_letters():
    assert len(set(WORDS)) == len(WORDS) > 400
    assert all(len(word) == 5 and word.isalpha() and word.islower() for word in WORDS)


def test_the_world_of_twenty_questions_is_described_by_known_traits():
    assert all(set(traits) <= set(TRAITS) for traits in WORLD.values())
    env = game("twenty-questions")
    env.reset(options={"index": 0})
    secret = env.problems[0].answer
    for trait in TRAITS[:6]:
        state, *_ = env.step(Action(f"Is it {trait}?", finish="stop"))
        assert state.reply == ("yes" if trait in WORLD[secret] else "no")


def test_the_shortest_way_is_the_shortest():
    env = game("maze")
    assert isinstance(env, Maze)
    for index in range(20):
        problem = env.problems[index]
        shortest = problem.solution.split("\n")
        (row, column), (goal_row, goal_column) = problem.info["start"], problem.info["goal"]
        assert len(shortest) >= abs(row - goal_row) + abs(column - goal_column)
        assert not play(env, index, shortest[:-1])[2]
    env.reset(options={"index": 0})
    state, *_, info = env.step(Action("up", finish="stop"))
    assert state.reply.startswith("Write north")
    assert not info["valid"]
