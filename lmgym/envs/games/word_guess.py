"""Guess a word of five letters: after each guess the game says which letters are right and which are elsewhere."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import files

from lmgym.envs.games.game import Game, Turn
from lmgym.envs.procedural import ProceduralProblems
from lmgym.types import Problem

WORDS = tuple((files("lmgym.envs.games") / "words.txt").read_text(encoding="utf-8").split())

_GUESS = re.compile(r"\b[a-z]{5}\b")


class WordGuess(Game):
    """Find a word of five letters; each letter is marked: G in its place, Y elsewhere in the word, - not in it."""

    instruction = "Write only your guess, a word of five letters."

    def __init__(self, split: str = "train", seed: int = 0, max_turns: int = 6, speed_bonus: float = 0.0) -> None:
        super().__init__(SecretWords(split, seed), max_turns, speed_bonus)

    def play(self, problem: Problem, moves: Sequence[str], move: str) -> Turn:
        """Marks the first word of five letters."""
        found = _GUESS.search(move.lower())
        if found is None:
            return Turn("Write a word of five letters.", valid=False)
        if found[0] == problem.answer:
            return Turn("GGGGG", won=True)
        return Turn(marks(problem.answer, found[0]))


class SecretWords(ProceduralProblems):
    """The words; each is in one split only."""

    def __init__(self, split: str, seed: int) -> None:
        super().__init__("word-guess", split, seed)

    def draws(self, random_source: random.Random, problem_id: str) -> Iterator[Problem]:
        """Any word."""
        while True:
            word = random_source.choice(WORDS)
            yield Problem(problem_id, "I think of a word of five letters. Guess it.", word, solution=word)

    def split_key(self, problem: Problem) -> str:
        """The word."""
        return problem.answer


def marks(word: str, guess: str) -> str:
    """G, Y or - for each letter of a guess; a letter that occurs once in the word is marked once."""
    left = Counter(letter for letter, other in zip(word, guess, strict=True) if letter != other)
    found = []
    for letter, other in zip(word, guess, strict=True):
        if letter == other:
            found.append("G")
        elif left[other]:
            left[other] -= 1
            found.append("Y")
        else:
            found.append("-")
    return "".join(found)
