"""Opponents in two-player games of TextArena: random moves, or a function of the user."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

from lmgym.envs.adapters.textarena_match import Match
from lmgym.errors import UserError
from lmgym.lookup import import_named

Opponent = Callable[[str], str]
"""Given all that it has seen of a game, its move; agents of TextArena are such functions."""

MOST_MOVES = 500
"""How many moves in a row an opponent may make."""

_LIST = re.compile(
    r"(?:available|valid|legal|possible) (?:moves|actions)|your options|remaining hand|one of: |choice in the format",
    re.I,
)
_MOVE = re.compile(r"\[[^\[\]\n]+\]")
_TRIAL_GAMES = 3
_TRIAL_MOVES = 40


class Side:
    """The side that the policy does not play: a function, or random moves if there is none."""

    def __init__(self, game: str, function: Opponent | None, seed: int) -> None:
        self.game = game
        self.function = function
        self.random_source = random.Random(seed)

    def __deepcopy__(self, memo: dict[int, Any]) -> Side:
        """Copies the random state and shares the function, which may be a model."""
        copied = Side(self.game, self.function, 0)
        copied.random_source.setstate(self.random_source.getstate())
        return copied

    def play(self, match: Match) -> tuple[str, bool]:
        """Makes a move of the player whose turn it is; returns it and whether the game allows it."""
        player = match.player
        match.observe()
        if self.function is None:
            move = self._random_move([text for _, text in match.messages[player]])
        else:
            # As TextArena shows it to its own agents.
            move = self.function("".join(f"\n[{name}] {text}" for name, text in match.messages[player]))
        if not isinstance(move, str):
            raise UserError(f"The opponent returned {move!r:.60}: a move is a text.")
        return move, match.play(move)

    def _random_move(self, messages: list[str]) -> str:
        """One of the moves, in square brackets, of the latest message that lists some."""
        for message in reversed(messages):
            lists = list(_LIST.finditer(message))
            moves = _MOVE.findall(message, lists[-1].end()) if lists else []
            if moves:
                return str(self.random_source.choice(moves))
        raise self.fault("does not list the moves that are allowed")

    def fault(self, fault: str) -> UserError:
        """Why no random opponent can play the game, and what to do about it."""
        return UserError(
            f"textarena/{self.game} {fault}, so no random opponent can play it: pass opponent=module:function, "
            "a function of the observation that returns a move."
        )


def load_opponent(opponent: str | Opponent) -> Opponent | None:
    """The function that an option names; None for "random"."""
    if opponent == "random":
        return None
    if isinstance(opponent, str) and ":" not in opponent:
        raise UserError(f'opponent is {opponent!r}: give "random", or a function as module:function.')
    found = import_named(opponent) if isinstance(opponent, str) else opponent
    if not callable(found):
        raise UserError(f"opponent is {opponent!r}, which is no function of an observation.")
    function: Opponent = found
    return function


def try_random(game: str, options: dict[str, Any]) -> None:
    """Plays the beginnings of some games at random; a move that the game refuses is an error."""
    for seed in range(_TRIAL_GAMES):
        match, side = Match(game, 2, seed, options), Side(game, None, seed)
        for _ in range(_TRIAL_MOVES):
            if match.done:
                break
            move, valid = side.play(match)
            if not valid:
                raise side.fault(f"lists moves that it refuses, such as {move}")
