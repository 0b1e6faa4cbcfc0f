"""Procedural datasets: item i is generated on access, by a random generator seeded with (seed, i)."""

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
LENGTH = 2**31
MOST_DRAWS = 1000


class EndlessProblems(Sequence[Problem]):
    """A lazy sequence of 2^31 problems, which a run walks through in order."""

    @abstractmethod
    def at(self, index: int) -> Problem:
        """The problem at an index from 0 to 2^31 − 1."""

    def __len__(self) -> int:
        return LENGTH

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | Sequence[Problem]:
        if isinstance(index, slice):
            return [self.at(position) for position in range(*index.indices(LENGTH))]
        if not 0 <= index < LENGTH:
            raise IndexError(f"There is no problem {index}: the index must be an integer from 0 to {LENGTH - 1}.")
        return self.at(int(index))


class ProceduralProblems(EndlessProblems):
    """Problems that are generated on access; their splits are disjoint for all seeds and options."""

    def __init__(self, name: str, split: str, seed: int) -> None:
        if split not in SPLITS:
            raise UserError(f'There is no split "{split}": the splits are {", ".join(SPLITS)}.')
        self.name = name
        self.split = split
        self.seed = seed

    @abstractmethod
    def draws(self, random_source: random.Random, problem_id: str) -> Iterator[Problem]:
        """Yields problems without end; the first one that belongs to the split is used."""

    def split_key(self, problem: Problem) -> str:
        """The key that determines the split of a problem; problems that differ only in wording share it."""
        return problem.prompt

    def at(self, index: int) -> Problem:
        """The first draw of this index that belongs to the split."""
        random_source = random.Random(f"{self.name}:{self.seed}:{index}")
        problem_id = f"{self.name}/{self.split}/{self.seed}/{index}"
        for problem in islice(self.draws(random_source, problem_id), MOST_DRAWS):
            if split_of(self.split_key(problem)) == self.split:
                return problem
        raise UserError(f"These options leave too few problems for the {self.split} split: widen them.")


def split_of(key: str) -> str:
    """The split of a key: a quarter of all keys are test, an eighth validation, the others train."""
    byte = hashlib.sha256(key.encode()).digest()[0]
    return "test" if byte < 64 else "validation" if byte < 96 else "train"
