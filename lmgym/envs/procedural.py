"""Endless datasets: item i is made, when it is asked for, by a generator seeded by (seed, i)."""

from __future__ import annotations

import hashlib
import random
from abc import abstractmethod
from collections.abc import Sequence
from typing import overload

from lmgym.errors import UserError
from lmgym.types import Problem

SPLITS = ("train", "test")
LENGTH = 2**31


class ProceduralProblems(Sequence[Problem]):
    """A lazy sequence of 2^31 problems, of which no text is in both splits whatever the seeds and options."""

    def __init__(self, name: str, split: str, seed: int) -> None:
        if split not in SPLITS:
            raise UserError(f'There is no split "{split}": the splits are "train" and "test".')
        self.name = name
        self.split = split
        self.seed = seed

    @abstractmethod
    def draw(self, random_source: random.Random, problem_id: str) -> Problem:
        """Makes some problem; it is drawn again until it falls into the split."""

    def __len__(self) -> int:
        return LENGTH

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | Sequence[Problem]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(LENGTH))]
        if not 0 <= index < LENGTH:
            raise IndexError(f"There is no problem {index}: the index is a whole number from 0 to {LENGTH - 1}.")
        random_source = random.Random(f"{self.name}:{self.seed}:{int(index)}")
        problem_id = f"{self.name}/{self.split}/{self.seed}/{index}"
        for _ in range(1000):
            problem = self.draw(random_source, problem_id)
            if split_of(problem.prompt) == self.split:
                return problem
        raise UserError(f"These options leave too few problems for the {self.split} split: widen them.")


def split_of(prompt: str) -> str:
    """Tells which split a text belongs to: a quarter of all texts are for testing."""
    return "test" if hashlib.sha256(prompt.encode()).digest()[0] < 64 else "train"
