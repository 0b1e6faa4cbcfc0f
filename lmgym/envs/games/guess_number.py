"""Guess the number: the game says whether the secret is higher or lower."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

from lmgym.envs.games.game import Game, Turn
from lmgym.envs.procedural import ProceduralProblems
from lmgym.errors import UserError
from lmgym.types import Problem

_NUMBER = re.compile(r"-?\d{1,9}")


class GuessNumber(Game):
    """Find a secret number from 1 to `largest`; after each guess the game says "higher" or "lower"."""

    instruction = "Write only your guess, a number."

    def __init__(
        self, split: str = "train", seed: int = 0, largest: int = 32, max_turns: int = 6, speed_bonus: float = 0.0
    ) -> None:
        super().__init__(SecretNumbers(split, seed, largest), max_turns, speed_bonus)

    def play(self, problem: Problem, moves: Sequence[str], move: str) -> Turn:
        """Compares the first number of the move with the secret."""
        guess, secret = first_number(move), int(problem.answer)
        if guess is None:
            return Turn("Write a number.", valid=False)
        if guess == secret:
            return Turn("Yes.", won=True)
        return Turn("higher" if guess < secret else "lower")


class SecretNumbers(ProceduralProblems):
    """The secrets; a split has bounds that no other one has, and so its own openings."""

    def __init__(self, split: str, seed: int, largest: int) -> None:
        super().__init__("guess-number", split, seed)
        if not 2 <= largest <= 10**6:
            raise UserError(f"largest is {largest}: it must be an integer from 2 to 1,000,000.")
        self.largest = largest

    def draws(self, random_source: random.Random, problem_id: str) -> Iterator[Problem]:
        """Bounds of the full width, anywhere up to a thousand, and a secret within them."""
        while True:
            low = random_source.randint(1, 1000)
            secret = random_source.randint(low, low + self.largest - 1)
            prompt = f"I think of a number from {low} to {low + self.largest - 1}. Guess it."
            solution = _bisection(low, low + self.largest - 1, secret)
            yield Problem(problem_id, prompt, str(secret), solution, info={"low": low})


def first_number(move: str) -> int | None:
    """The first whole number of a move, or None."""
    found = _NUMBER.search(move)
    return int(found[0]) if found else None


def _bisection(low: int, high: int, secret: int) -> str:
    """The guesses of a player who halves the range, a line each."""
    guesses: list[int] = []
    while not guesses or guesses[-1] != secret:
        guess = (low + high) // 2
        guesses.append(guess)
        low, high = (guess + 1, high) if guess < secret else (low, guess - 1)
    return "\n".join(map(str, guesses))
