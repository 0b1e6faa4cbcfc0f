"""Games of TextArena, against the package itself."""

from __future__ import annotations

import random
import re
import sys

import pytest
import textarena
from gymnasium.utils.env_checker import check_env

import lmgym
from lmgym import UserError
from lmgym.envs.adapters.textarena_env import TextArenaEnv
from lmgym.types import Action

SINGLE = ("2048-v0-ultra-easy", "Blackjack-v0", "FrozenLake-v0", "Mastermind-v0", "Minesweeper-v0", "Sudoku-v0-easy")
DOUBLE = ("TicTacToe-v0", "KuhnPoker-v0", "Othello-v0-tiny", "PigDice-v0", "SimpleTak-v0", "Stratego-v0")
MOVES = ("[up]", "[hit]", "[stand]", "[down]", "[right]", "[1 2 3 4]", "[reveal 0 0]", "[1 1 5]", "nonsense")


def first_free(observation: str) -> str:
    """An opponent of Tic Tac Toe: the first of the moves listed last."""
    return observation.rpartition("Available Moves: ")[2].split(", ")[0].strip("'")


def own_game(name: str, seed: int, players: int = 1):
    """The game as TextArena plays it, without lmgym."""
    game = textarena.make(name)
    game.reset(num_players=players, seed=seed)
    return game


def test_a_number_is_found_by_halving():
    env = lmgym.make("textarena/GuessTheNumber-v0")
    state, _ = env.reset(options={"index": 0})
    assert "between 1 and 20" in state.messages[0]["content"]
    low, high, ended = 1, 20, False
    while not ended:
        guess = (low + high) // 2
        state, reward, ended, _, info = env.step(f"It lies between [{low}] and [{high}].\n[{guess}]")
        assert info["valid"]
        if not ended:
            assert state.reply in ("The target number is lower.", "The target number is higher.")
            low, high = (guess + 1, high) if "higher" in state.reply else (low, guess - 1)
    assert (reward, info["correct"], info["final"]) == (1, True, True)


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("index", [0, 3])
def test_rewards_are_those_of_the_game_itself(name, index):
    env = lmgym.make(f"textarena/{name}")
    state, _ = env.reset(options={"index": index})
    own = own_game(name, state.problem.info["seed"])
    for turn in range(60):
        move = MOVES[turn % len(MOVES)]
        _, reward, terminated, truncated, info = env.step(move)
        ended, _ = own.step(action=move)
        assert (terminated, truncated) == (ended, False)
        if ended:
            assert reward == own.close()[0][0]
            assert info["correct"] == (reward >= 1)
            break
        assert reward == 0


@pytest.mark.parametrize("name", ["2048-v0-ultra-easy", "Blackjack-v0", "TicTacToe-v0", "PigDice-v0"])
def test_an_episode_depends_on_its_problem_only_and_leaves_the_global_random_state_alone(name):
    env = lmgym.make(f"textarena/{name}")

    def replies(index: int) -> list[str]:
        clone = env.clone()
        state, _ = clone.reset(options={"index": index})
        said, ended = [state.messages[0]["content"]], False
        while not ended and len(said) < 6:
            random.random()
            state, _, ended, *_ = clone.step(("[up]", "[stand]", "[4]", "[roll]", "[left]")[len(said) - 1])
            said.append(state.reply)
        return said

    random.seed(1)
    first = replies(0)
    drawn = random.random()
    random.seed(2)
    assert replies(0) == first
    random.seed(1)
    for _ in first[1:]:
        random.random()
    assert random.random() == drawn


def test_episodes_do_not_share_a_game():
    env = lmgym.make("textarena/TicTacToe-v0", opponent=first_free)
    one, two = env.clone(), env.clone()
    one.reset(options={"index": 0})
    two.reset(options={"index": 1})
    assert one.step("[4]")[4]["valid"]
    assert two.step("[4]")[4]["valid"]
    assert not one.step("[4]")[4]["valid"]


@pytest.mark.parametrize(("player", "moves", "reward"), [(0, "345", 1), (1, "246", 1), (0, "834", -1)])
def test_the_policy_plays_one_side_and_a_function_the_other(player, moves, reward):
    env = lmgym.make("textarena/TicTacToe-v0", opponent=f"{__name__}:first_free", player=player)
    state, _ = env.reset(options={"index": 0})
    assert f"You are Player {player}" in state.messages[0]["content"]
    for move in moves:
        state, found, ended, _, info = env.step(f"[{move}]")
        if not ended:
            assert "Current Board" in state.reply
            assert f"[Player {1 - player}]" in state.reply, "the move of the opponent"
            assert f"[Player {player}]" not in state.reply, "the policy's own move, which it has just written"
    assert (found, ended, info["correct"]) == (reward, True, reward == 1)


def listed(texts: list[str]) -> list[str]:
    """The moves of the latest message that lists some."""
    lists = [re.split("(?:available|valid) (?:moves|actions)", text, flags=re.I) for text in texts]
    return next(moves for parts in reversed(lists) if len(parts) > 1 and (moves := re.findall(r"\[.+?\]", parts[-1])))


@pytest.mark.parametrize("name", DOUBLE)
def test_a_random_opponent_makes_only_moves_that_are_allowed(name):
    env = lmgym.make(f"textarena/{name}", max_turns=30)
    assert isinstance(env, TextArenaEnv)
    chosen = random.Random(0)
    for index in range(3):
        state, _ = env.reset(options={"index": index})
        assert env.match is not None
        ended = False
        while not ended:
            move = chosen.choice(listed([message["content"] for message in state.messages]))
            state, _, terminated, truncated, info = env.step(move)
            assert info["valid"]
            assert not env.match.env.state.game_info[1]["invalid_move"]
            assert not env.match.env.state.error_count
            ended = terminated or truncated


def test_a_move_that_cannot_be_read_is_told_and_the_second_one_loses():
    env = lmgym.make("textarena/GuessTheNumber-v0")
    env.reset(options={"index": 0})
    state, reward, terminated, truncated, info = env.step("seven")
    assert (reward, terminated, truncated, info) == (0, False, False, {"valid": False})
    assert "invalid move" in state.reply
    *_, terminated, _, info = env.step("seven")
    assert (terminated, info["valid"], info["correct"]) == (True, False, False)


@pytest.mark.parametrize("name", ["GuessTheNumber-v0", "TicTacToe-v0", "Mastermind-v0", "Countdown-v0"])
@pytest.mark.parametrize("text", ["[" + "9" * 5000 + "]", "", "[", "]" * 3000, "\0", "[٣]", "[GAME] you win", "\ud800"])
def test_hostile_text_neither_raises_nor_wins(name, text):
    env = lmgym.make(f"textarena/{name}")
    env.reset(options={"index": 0})
    for _ in range(3):
        _, reward, terminated, _, info = env.step(text)
        assert reward < 1
        if terminated:
            assert info["final"]
            assert not info["correct"]
            break


def test_an_action_cut_off_by_its_budget_loses_and_turns_that_are_used_up_end_the_game():
    env = lmgym.make("textarena/TicTacToe-v0", max_turns=2, opponent=first_free)
    env.reset(options={"index": 0})
    _, reward, terminated, truncated, info = env.step(Action("I think that", finish="length"))
    assert (reward, terminated, truncated, info["final"], info["correct"]) == (-1, False, True, True, False)
    env.reset(options={"index": 0})
    assert not env.step("[4]")[3]
    _, reward, terminated, truncated, info = env.step("[8]")
    assert (reward, terminated, truncated, info["turns"]) == (0, False, True, 2)


def test_all_of_an_action_is_the_move_if_asked_for():
    env = lmgym.make("textarena/GuessTheNumber-v0", whole_text=True)
    env.reset(options={"index": 0})
    assert env.step("[3]\nThat is my guess.")[4]["valid"]


def test_options_are_those_of_the_game():
    env = lmgym.make("textarena/GuessTheNumber-v0", max_number=3)
    assert "between 1 and 3" in env.reset(options={"index": 0})[0].messages[0]["content"]


def test_it_is_an_environment_of_gymnasium():
    check_env(lmgym.make("textarena/GuessTheNumber-v0"), skip_render_check=True)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("GuessTheNumbr-v0", {}, "did you mean GuessTheNumber-v0"),
        ("GuessTheNumber-v0", {"nonsense": 1}, "cannot be made: TypeError"),
        ("GuessTheNumber-v0", {"player": 1}, "the players 0 to 0"),
        ("GuessTheNumber-v0", {"max_turns": 0}, "at least one turn"),
        ("ThreePlayerTicTacToe-v0", {}, "cannot be played by one or two players"),
        ("ConnectFour-v0", {}, "does not list the moves that are allowed"),
        ("TwoDollar-v0", {}, "lists moves that it refuses"),
        ("TicTacToe-v0", {"opponent": "strong"}, 'give "random"'),
        ("TicTacToe-v0", {"opponent": 3}, "no function"),
        ("TwentyQuestions-v0", {}, "cannot be made: ValueError"),
    ],
)
def test_a_mistake_gets_one_sentence(name, options, said, monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(UserError, match=said):
        lmgym.make(f"textarena/{name}", **options)


def test_an_opponent_that_returns_no_text_is_named():
    env = lmgym.make("textarena/ConnectFour-v0", opponent=lambda observation: 3)
    env.reset(options={"index": 0})
    with pytest.raises(UserError, match="The opponent returned 3"):
        env.step("[0]")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(UserError, match=r"pip install 'lmgym\[textarena\]'"):
        lmgym.make("textarena/GuessTheNumber-v0")
