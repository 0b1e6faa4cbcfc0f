"""A curriculum: problems that are solved now and then teach more than those that are always or never solved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, islice

import numpy as np

from lmgym.evaluation.evaluation import is_correct
from lmgym.types import Episode, Problem

TOO_HARD, TOO_EASY = 0.2, 0.8
"""Below the one nothing is found, above the other nothing is left to find."""

POOL = 1024
"""How many problems of a large task are gone through again and again."""

ENDLESS = 100_000
"""A task with more problems than this is procedural: it is gone through in order, from a random start."""


def shuffled_walk(first: int, count: int, size: int, seed: int) -> list[int]:
    """`count` problems from place `first` on of an endless walk: all of a task's come once before any comes twice."""
    places = range(first, first + count)
    if size > ENDLESS:
        start = int(np.random.default_rng(seed).integers(size))
        return [(start + place) % size for place in places]
    epochs = {place // size for place in places}
    orders = {epoch: np.random.default_rng([seed, epoch]).permutation(size) for epoch in epochs}
    return [int(orders[place // size][place % size]) for place in places]


def fruitful_problems(
    problems: Sequence[Problem], episodes: Iterable[Episode], count: int, random: np.random.Generator
) -> list[int]:
    """`count` problems, those first that were neither always nor never solved when `episodes` last met them."""
    pool = min(len(problems), POOL)
    ids = [problems[index].id for index in range(pool)]
    return choose_problems(random.permutation(pool).tolist(), ids, success_rates(episodes), count)


def success_rates(episodes: Iterable[Episode]) -> dict[str, float]:
    """For each problem, by its id, the share of its newest group's episodes that are right."""
    newest: dict[str, tuple[int, list[bool]]] = {}
    for episode in episodes:
        iteration, outcomes = newest.get(episode.problem.id, (episode.iteration, []))
        if episode.iteration > iteration:
            outcomes = []
        newest[episode.problem.id] = (episode.iteration, [*outcomes, is_correct(episode)])
    return {problem: sum(outcomes) / len(outcomes) for problem, (_, outcomes) in newest.items()}


def choose_problems(order: Sequence[int], ids: Sequence[str], rates: Mapping[str, float], count: int) -> list[int]:
    """Half from those solved 20 to 80 % of the time, then new ones, then whatever there is; in the order given.

    A task with fewer problems than that is gone through again.
    """
    fruitful = [index for index in order if TOO_HARD <= rates.get(ids[index], -1.0) <= TOO_EASY]
    unknown = [index for index in order if ids[index] not in rates]
    chosen = fruitful[: count - count // 2] + unknown
    chosen += [index for index in (*fruitful, *order) if index not in set(chosen)]
    return list(islice(cycle(dict.fromkeys(chosen)), count))
