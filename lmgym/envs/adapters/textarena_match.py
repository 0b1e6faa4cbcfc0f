"""One running game of TextArena: whose turn it is, what that player is told, and how a move changes it."""

from __future__ import annotations

import math
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from lmgym.errors import UserError
from lmgym.lookup import nearest

GAME = -1
"""The sender of the game's own messages."""

FORFEIT = -1.0
"""The reward of TextArena for a player who loses by a move that is not allowed."""

_GLOBAL_RANDOM = threading.Lock()


class Match:
    """A game of one or two players, with a random state of its own where TextArena uses the global one.

    The wrappers of TextArena that format observations repeat the whole history: only those of actions are used.
    """

    def __init__(self, game: str, players: int, seed: int, options: dict[str, Any]) -> None:
        self._python_state = random.Random(seed).getstate()
        self._numpy_state = np.random.RandomState(seed % 2**32).get_state()
        arena = package()
        with self._own_random():
            wrapped = _made(arena, game, options)
            wrapped.reset(num_players=players, seed=seed)
        self._action_wrappers = []
        while isinstance(wrapped, arena.Wrapper):
            if isinstance(wrapped, arena.ActionWrapper):
                self._action_wrappers.append(wrapped)
            wrapped = wrapped.env
        self.env: Any = wrapped
        if self.env.state.num_players != players or (players == 1 and not self._is_single()):
            raise ValueError(f"it is not a game of {players}")
        self._own_action = arena.ObservationType.PLAYER_ACTION
        self._last_move = dict.fromkeys(range(players), "")
        self.messages: dict[int, list[tuple[str, str]]] = {player: [] for player in range(players)}
        """All that each player has seen: who says it, and what."""

    @property
    def player(self) -> int:
        """The player whose turn it is."""
        return int(self.env.state.current_player_id)

    @property
    def done(self) -> bool:
        """Whether the game has ended."""
        return bool(self.env.state.done)

    def observe(self) -> str:
        """What the player whose turn it is has not been told yet, without the player's own moves."""
        player = self.player
        with self._own_random():
            _, messages = self.env.get_observation()
        told = []
        for sender, message, kind in messages:
            if not isinstance(message, str):  # Countdown-v0 passes its arguments in the wrong order
                continue
            name = "GAME" if sender == GAME else self.env.state.role_mapping.get(sender, f"Player {sender}")
            self.messages[player].append((name, message))
            is_own = kind is self._own_action and (sender == player or message == self._last_move[player])
            if not is_own:
                told.append(message if sender == GAME else f"[{name}] {message}")
        return "\n".join(told).strip()

    def play(self, move: str) -> bool:
        """Makes a move for the player whose turn it is, and says whether the game allows it."""
        player = self.player
        for wrapper in self._action_wrappers:
            move = wrapper.action(move)
        self._last_move[player] = move
        with self._own_random():
            self.env.step(action=move)
        state = self.env.state
        return not (getattr(state, "error_count", 0) or state.game_info[player]["invalid_move"])

    def outcome(self, player: int) -> tuple[float, str]:
        """The reward of a player when the game has ended, and the reason that the game gives."""
        rewards, info = self.env.close()
        reward = (rewards or {}).get(player, 0)
        # Countdown-v0 swaps the reward and the reason of a move that is not allowed.
        is_number = isinstance(reward, int | float) and math.isfinite(reward)
        return float(reward) if is_number else FORFEIT, str(info.get(player, {}).get("reason", ""))

    def _is_single(self) -> bool:
        return isinstance(self.env.state, package().SinglePlayerState)

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        """Puts the state of this game in the place of the global random state, and the global one back afterwards."""
        with _GLOBAL_RANDOM:
            python_state, numpy_state = random.getstate(), np.random.get_state()
            random.setstate(self._python_state)
            np.random.set_state(self._numpy_state)
            try:
                yield
            finally:
                self._python_state, self._numpy_state = random.getstate(), np.random.get_state()
                random.setstate(python_state)
                np.random.set_state(numpy_state)


def count_players(game: str, options: dict[str, Any]) -> int:
    """One or two, as the game allows; any other number is an error."""
    fault = ""
    for players in (1, 2):
        try:
            Match(game, players, 0, options)
            return players
        except UserError:
            raise
        except Exception as error:  # the assertion of one game is the ValueError of another
            fault = _sentence(error)
    raise UserError(f"textarena/{game} cannot be played by one or two players: {fault}")


def package() -> Any:
    """TextArena, which is an extra."""
    try:
        import textarena
    except ImportError as error:
        raise UserError("TextArena is not installed: run pip install 'lmgym[textarena]'.") from error
    return textarena


def _made(arena: Any, game: str, options: dict[str, Any]) -> Any:
    known = arena.envs.registration.ENV_REGISTRY
    if game not in known:
        meant = nearest(game, known)
        guess = f" (did you mean {meant}?)" if meant else ""
        raise UserError(f"TextArena has no game {game!r}{guess}; it has {len(known)} others.")
    try:
        return arena.make(game, **options)
    except Exception as error:  # a missing word list, key of an API or file, or syntax that this Python does not know
        raise UserError(f"textarena/{game} cannot be made: {_sentence(error)}") from error


def _sentence(error: Exception) -> str:
    """The kind of an error and its first line with a word in it."""
    lines = [line.strip() for line in str(error).splitlines() if re.search(r"\w", line)]
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
