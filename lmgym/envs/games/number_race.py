"""Guess the number for two players, who guess at the same time: the first to find the secret wins.

    episode 0 ── guess ──┐                         ┌── "higher. The other player guessed 20: lower." ──► episode 0
                         ├── VectorEnv: both moved ┤
    episode 1 ── guess ──┘                         └── "lower. The other player guessed 8: higher." ───► episode 1

In self-play both sides are episodes of the policy, each with its own conversation and its own reward, so each side's
tokens are credited with what that side has won.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from lmgym.envs.env import Env, Response
from lmgym.envs.games.game import last_line
from lmgym.envs.games.guess_number import SecretNumbers, first_number
from lmgym.errors import UserError
from lmgym.types import Action, Finish, Problem, State

OPPONENTS = ("self", "bisection", "random")


class NumberRace(Env):
    """Find a secret number before the other player does; in self-play the other player is another episode.

    Both guess at the same time and hear both answers. A win is worth 1, a draw 0.5. `opponent` is by default "self" in
    training, where --group_size must be even, and "bisection" on other splits, which halves the range that is left;
    "random" guesses within it.
    """

    instruction = "Write only your guess, a number."

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
        self.players = 2 if opponent == "self" else 1
        self.guesses: list[int] = []
        """Those of both players."""

    def opening(self, problem: Problem) -> str:
        """The problem, and that there is another player."""
        self.guesses = []
        return f"{problem.prompt} Another player guesses at the same time: be the first to find it."

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        """Compares the guesses of both players with the secret; one who is cut off leaves the other alone."""
        if finish == "length":
            return Response(truncated=True, info={"correct": False, "turns": state.turn, "valid": False, "final": True})
        guess, theirs = first_number(last_line(text)), self._opponents_guess(state)
        secret = int(state.problem.answer)
        self.guesses += [each for each in (guess, theirs) if each is not None]
        won, lost = guess == secret, theirs == secret
        over = won or lost or state.turn >= self.max_turns
        info: dict[str, Any] = {"valid": guess is not None}
        if over:
            info |= {"correct": won and not lost, "draw": won and lost, "turns": state.turn, "final": True}
        reply = f"{_answer(guess, secret)} The other player guessed {_shown(theirs)}: {_answer(theirs, secret)}"
        return Response(reward=won - 0.5 * (won and lost), reply=reply, terminated=over, info=info)

    def _opponents_guess(self, state: State) -> int | None:
        if self.opponent == "self":
            return _read(self.others[0]) if self.others else None
        low, high = _left(state.problem, self.largest, self.guesses)
        if self.opponent == "bisection":
            return (low + high) // 2
        return random.Random(f"{state.problem.id}:{state.turn}").randint(low, high)


def _read(action: Action) -> int | None:
    return None if action.finish == "length" else first_number(last_line(action.text))


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
