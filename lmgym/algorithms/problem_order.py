"""The problems of each iteration: a shuffled walk through the task, or a curriculum by success rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, islice

import numpy as np

from lmgym.envs.procedural import EndlessProblems
from lmgym.evaluation.grading import is_correct
from lmgym.types import Episode, Problem

TOO_HARD, TOO_EASY = 0.2, 0.8
"""Success rates outside of this range give groups with little or no advantage."""

POOL = 1024
"""How many problems of an endless task a curriculum chooses from."""


class ProblemOrder:
    """Which problems an iteration samples: a function of seed and iteration, and for a curriculum of the past."""

    def __init__(self, problems: Sequence[Problem], count: int, seed: int, rounds: int = 1) -> None:
        """`count` problems per round, and at most `rounds` rounds per iteration."""
        self.problems, self.count, self.seed, self.rounds = problems, count, seed, rounds

    def shuffled(self, iteration: int, resample_round: int = 0) -> list[int]:
        """The problems of one round of an iteration; problems of rounds that are not needed are skipped."""
        first = (iteration * self.rounds + resample_round) * self.count
        is_endless = isinstance(self.problems, EndlessProblems)
        return shuffled_walk(first, self.count, len(self.problems), self.seed, is_endless)

    def curriculum(self, iteration: int, episodes: Iterable[Episode]) -> list[int]:
        """Problems of medium success rate first, by the episodes of earlier iterations."""
        before = [episode for episode in episodes if episode.iteration < iteration]
        random = np.random.default_rng([self.seed, iteration])
        pool = POOL if isinstance(self.problems, EndlessProblems) else len(self.problems)
        ids = [self.problems[index].id for index in range(pool)]
        return choose_problems(random.permutation(pool).tolist(), ids, success_rates(before), self.count)


def shuffled_walk(first: int, count: int, size: int, seed: int, is_endless: bool = False) -> list[int]:
    """`count` problems from position `first` of an infinite sequence of epochs, each a permutation of the task."""
    places = range(first, first + count)
    if is_endless:
        start = int(np.random.default_rng(seed).integers(size))
        return [(start + place) % size for place in places]
    epochs = {place // size for place in places}
    orders = {epoch: np.random.default_rng([seed, epoch]).permutation(size) for epoch in epochs}
    return [int(orders[place // size][place % size]) for place in places]


def success_rates(episodes: Iterable[Episode]) -> dict[str, float]:
    """For each problem, by its id, the share of correct episodes in its newest group."""
    newest: dict[str, tuple[int, list[bool]]] = {}
    for episode in episodes:
        iteration, outcomes = newest.get(episode.problem.id, (episode.iteration, []))
        if episode.iteration > iteration:
            outcomes = []
        newest[episode.problem.id] = (episode.iteration, [*outcomes, is_correct(episode)])
    return {problem: sum(outcomes) / len(outcomes) for problem, (_, outcomes) in newest.items()}


def choose_problems(order: Sequence[int], ids: Sequence[str], rates: Mapping[str, float], count: int) -> list[int]:
    """Half with a success rate of 20 to 80 %, then unseen ones, then any others; in the order given.

    A task with fewer problems than that is repeated.
    """
    medium = [index for index in order if TOO_HARD <= rates.get(ids[index], -1.0) <= TOO_EASY]
    unseen = [index for index in order if ids[index] not in rates]
    chosen = dict.fromkeys([*medium[: count - count // 2], *unseen, *medium, *order])
    return list(islice(cycle(chosen), count))
