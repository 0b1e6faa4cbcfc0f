"""A word problem under construction: its sentences, its random numbers and the worked line of each operation."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_WORDS = "zero one two three four five six seven eight nine ten eleven twelve"
NUMBER_WORDS = tuple(_WORDS.split())
CONNECTORS = ("Then ", "After that, ", "Later, ", "Next, ")
ASIDES = (
    "It is # degrees outside.",
    "Today is May #.",
    "The clock on the wall is # minutes slow.",
    "The radio has played # songs today.",
)
_SMALL_NUMBER = re.compile(r"(?<![$\d,.])\b(?:[2-9]|1[0-2])\b(?![\d,%]|\.\d)")


class UnfitError(Exception):
    """The sampled numbers give no valid problem: sample again."""


@dataclass(frozen=True)
class Person:
    """A person in a story and their pronouns."""

    name: str
    she: str
    her: str
    own: str
    """The possessive: her or his."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Size:
    """Upper bounds of the numbers: factors and prices, amounts, and results."""

    factor: int
    amount: int
    limit: int


SIZES = {
    1: Size(5, 20, 100),
    2: Size(9, 50, 500),
    3: Size(12, 100, 2_000),
    4: Size(20, 400, 20_000),
    5: Size(50, 2_000, 500_000),
}
WORDS_FROM, ASIDE_FROM = 3, 4
"""The difficulties from which small numbers may be spelled out and an irrelevant sentence is added."""

GIRLS = "Mia Ana Lily Emma Zoe Nora Ruth Sara Julia Priya Aisha Mei Carla Hannah Olga Tina Grace Ivy Leila Rosa"
BOYS = "Tom Ben Leo Max Omar Raj Luis Sam Jack Noah Ivan Kofi Peter Hugo Adam Carl Dylan Felix Marco Yusuf"
PEOPLE = tuple(Person(name, "she", "her", "her") for name in GIRLS.split()) + tuple(
    Person(name, "he", "him", "his") for name in BOYS.split()
)


class Story:
    """A word problem under construction; the story kinds call its methods in the order of its text."""

    def __init__(self, random_source: random.Random, difficulty: int) -> None:
        self.random = random_source
        self.difficulty = difficulty
        self.size = SIZES[difficulty]
        self.sentences: list[str] = []
        self.lines: list[str] = []
        self.question = ""
        self.answer = 0

    def choose(self, options: Sequence[T], besides: T | None = None) -> T:
        """Draws one of the options, and not the one given as `besides` if there are others."""
        return self.random.choice([option for option in options if option != besides] or options)

    def people(self, count: int) -> list[Person]:
        """Draws people with different names."""
        return self.random.sample(PEOPLE, count)

    def between(self, low: int, high: int) -> int:
        """Draws a whole number from low to high, both included."""
        if high < low:
            raise UnfitError
        return self.random.randint(low, high)

    def amount(self) -> int:
        """Draws how many of something there are."""
        return self.between(3, self.size.amount)

    def factor(self) -> int:
        """Draws a price, a number of groups or a size of groups."""
        return self.between(2, self.size.factor)

    def part_of(self, value: int) -> int:
        """Draws a number to subtract that leaves at least two."""
        return self.between(2, min(self.size.amount, value - 2))

    def divisor(self, value: int) -> int:
        """Draws a number that divides the value and leaves groups of at least two."""
        divisors = [number for number in range(2, min(self.size.factor, value // 2) + 1) if value % number == 0]
        if not divisors:
            raise UnfitError
        return self.random.choice(divisors)

    def say(self, sentence: str) -> None:
        """Adds a sentence to the problem."""
        self.sentences.append(sentence[0].upper() + sentence[1:])

    def then(self, index: int, sentence: str) -> None:
        """Adds the sentence of event number `index`, with a word for the order in time after the first."""
        self.say(f"{CONNECTORS[(index - 1) % len(CONNECTORS)]}{sentence}" if index else sentence)

    def ask(self, question: str) -> None:
        """Ends the problem."""
        self.question = question

    def work(self, line: str, left: int, operator: str, right: int) -> int:
        """Computes one operation and adds its line, in which `#` becomes the calculation and `$#` one in dollars."""
        if operator == "/" and left % right:
            raise UnfitError
        value = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[operator]
        if not 2 <= value <= self.size.limit:
            raise UnfitError
        expression = f"{left}{operator}{right}"
        calculation = f"<<{expression}={value}>>{value}"
        line = line.replace("$#", f"{expression} = ${calculation}", 1).replace("#", f"{expression} = {calculation}", 1)
        self.lines.append(line[0].upper() + line[1:])
        self.answer = value
        return value

    def text(self) -> str:
        """The text of the problem, with the wording of its difficulty."""
        sentences = [*self.sentences, self.question]
        if self.difficulty >= ASIDE_FROM:
            # It comes first, so that no pronoun of the story can refer to it.
            sentences.insert(0, self.choose(ASIDES).replace("#", str(self.between(13, 28))))
        text = " ".join(sentences)
        return _SMALL_NUMBER.sub(self._maybe_in_words, text) if self.difficulty >= WORDS_FROM else text

    def _maybe_in_words(self, match: re.Match[str]) -> str:
        return self.choose((match[0], NUMBER_WORDS[int(match[0])]))
