"""Guess the number for two players, who guess at the same time: the first to find the secret wins.

    episode 0 ── guess ──┐                  ┌── "higher. The other player guessed 20: lower." ──► episode 0
                         ├── round of Match ┤
    episode 1 ── guess ──┘                  └── "lower. The other player guessed 8: higher." ───► episode 1

In self-play both sides are episodes of the policy, each with its own conversation and its own reward, so each side's
tokens are credited with what that side has won.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lmgym.envs.env import Env, Response
from lmgym.envs.games.game import last_line
from lmgym.envs.games.guess_number import SecretNumbers, first_number
from lmgym.errors import UserError
from lmgym.types import Finish, Problem, State

OPPONENTS = ("self", "bisection", "random")
PLAYERS = 2


class Match:
    """The rounds of two players; a player waits for the other one's guess, unless that one has left."""

    def __init__(self) -> None:
        self.joined = 0
        self._rounds: list[dict[int, int | None]] = []
        self._left: set[int] = set()
        self._changed = threading.Condition()

    def exchange(self, player: int, turn: int, guess: int | None, seconds: float) -> int | None:
        """Gives this player's guess of a turn, and returns the other one's; None if there is none."""
        other = 1 - player
        with self._changed:
            while len(self._rounds) <= turn:
                self._rounds.append({})
            self._rounds[turn][player] = guess
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: other in self._rounds[turn] or other in self._left, seconds):
                raise TimeoutError("the other player does not move")
            return self._rounds[turn].get(other)

    def leave(self, player: int) -> None:
        """The other player goes on alone."""
        with self._changed:
            self._left.add(player)
            self._changed.notify_all()


@dataclass
class Lobby:
    """Pairs episodes on the same problem, in the order in which they start."""

    waiting: dict[str, Match] = field(default_factory=dict)

    def join(self, problem: Problem) -> tuple[Match, int]:
        """A match and the number of the player in it."""
        match = self.waiting.pop(problem.id, None)
        if match is None:
            match = self.waiting[problem.id] = Match()
        match.joined += 1
        return match, match.joined - 1


class NumberRace(Env):
    """Find a secret number before the other player does; in self-play the other player is another episode.

    Both guess at the same time and hear both answers. A win is worth 1, a draw 0.5. `opponent` is by default "self" in
    training, where --group_size must be even, and "bisection" on other splits, which halves the range that is left;
    "random" guesses within it.
    """

    instruction = "Write only your guess, a number."
    concurrency = 4096  # every episode may wait for another one
    shared_attributes = (*Env.shared_attributes, "lobby")

    def __init__(
        self, split: str = "train", seed: int = 0, largest: int = 32, max_turns: int = 6, opponent: str = ""
    ) -> None:
        super().__init__(SecretNumbers(split, seed, largest))
        opponent = opponent or ("self" if split == "train" else "bisection")
        if opponent not in OPPONENTS:
            raise UserError(f"there is no opponent {opponent!r}: there are {', '.join(OPPONENTS)}.")
        if max_turns < 1:
            raise UserError(f"max_turns is {max_turns}: a game needs at least one turn.")
        self.largest = largest
        self.max_turns = max_turns
        self.opponent = opponent
        self.lobby = Lobby()
        self.match: Match | None = None
        self.player = 0
        self.guesses: list[int] = []
        """Those of both players."""

    def opening(self, problem: Problem) -> str:
        """Joins a match."""
        self.guesses = []
        if self.opponent == "self":
            self.match, self.player = self.lobby.join(problem)
        return f"{problem.prompt} Another player guesses at the same time: be the first to find it."

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        """Waits for the other player's guess and compares both with the secret."""
        if finish == "length":
            self._leave()
            return Response(truncated=True, info={"correct": False, "turns": state.turn, "valid": False, "final": True})
        guess = first_number(last_line(text))
        theirs = self._opponents_guess(state, guess)
        secret = int(state.problem.answer)
        self.guesses += [each for each in (guess, theirs) if each is not None]
        won, lost = guess == secret, theirs == secret
        over = won or lost or state.turn >= self.max_turns
        info: dict[str, Any] = {"valid": guess is not None}
        if over:
            info |= {"correct": won and not lost, "draw": won and lost, "turns": state.turn, "final": True}
        reply = f"{_answer(guess, secret)} The other player guessed {_shown(theirs)}: {_answer(theirs, secret)}"
        return Response(reward=won - 0.5 * (won and lost), reply=reply, terminated=over, info=info)

    def _opponents_guess(self, state: State, guess: int | None) -> int | None:
        if self.match is not None:
            if self.match.joined < PLAYERS:
                self.lobby.waiting.pop(state.problem.id, None)
                raise UserError("this episode has nobody to play against: self-play needs an even --group_size")
            return self.match.exchange(self.player, state.turn - 1, guess, self.max_step_seconds)
        low, high = _left(state.problem, self.largest, self.guesses)
        if self.opponent == "bisection":
            return (low + high) // 2
        return random.Random(f"{state.problem.id}:{state.turn}").randint(low, high)

    def _leave(self) -> None:
        if self.match is not None:
            self.match.leave(self.player)


def _left(problem: Problem, largest: int, guesses: Sequence[int]) -> tuple[int, int]:
    """The range in which the secret can still be after these guesses."""
    low = int(problem.info["low"])
    secret, high = int(problem.answer), low + largest - 1
    return (
        max([low, *(guess + 1 for guess in guesses if guess < secret)]),
        min([high, *(guess - 1 for guess in guesses if guess > secret)]),
    )


def _answer(guess: int | None, secret: int) -> str:
    if guess is None:
        return "write a number."
    return "yes." if guess == secret else "higher." if guess < secret else "lower."


def _shown(guess: int | None) -> str:
    return "nothing" if guess is None else str(guess)
