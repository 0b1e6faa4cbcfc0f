"""Endless datasets: item i is made, when it is asked for, by a generator seeded by (seed, i)."""

from __future__ import annotations

import hashlib
import random
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import overload

from lmgym.errors import UserError
from lmgym.types import Problem

SPLITS = ("train", "validation", "test")
PROCEDURAL_SIZE = 100_000
"""A task with more problems than this is procedural: training traverses it in order, from a random start."""

LENGTH = 2**31
MOST_DRAWS = 1000


class ProceduralProblems(Sequence[Problem]):
    """A lazy sequence of 2^31 problems, of which no two splits share one whatever the seeds and options."""

    def __init__(self, name: str, split: str, seed: int) -> None:
        if split not in SPLITS:
            raise UserError(f'There is no split "{split}": the splits are {", ".join(SPLITS)}.')
        self.name = name
        self.split = split
        self.seed = seed

    @abstractmethod
    def draws(self, random_source: random.Random, problem_id: str) -> Iterator[Problem]:
        """Makes problems without end, of which the first that belongs to the split is taken."""

    def split_key(self, problem: Problem) -> str:
        """What decides the split of a problem: those that differ only in exchangeable words share a key."""
        return problem.prompt

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
        for problem in islice(self.draws(random_source, problem_id), MOST_DRAWS):
            if split_of(self.split_key(problem)) == self.split:
                return problem
        raise UserError(f"These options leave too few problems for the {self.split} split: widen them.")


def split_of(key: str) -> str:
    """Tells which split a key belongs to: a quarter of all keys are for testing, an eighth for validation."""
    byte = hashlib.sha256(key.encode()).digest()[0]
    return "test" if byte < 64 else "validation" if byte < 96 else "train"
