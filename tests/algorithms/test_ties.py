"""Of episodes that earned the same, none is preferred for what it says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hand_made import Turn, make_episode
from small_tasks import TRAIN, Remembering, chat
from tabular import make_algorithm

from lmgym.algorithms.registry import find_algorithm
from lmgym.envs.env import Env, Response
from lmgym.learning.batch import Batch
from lmgym.types import Episode, Finish, State

SIZE, GROUPS = 8, 800


def seeded(token: int, reward: float, seed: int, group: int) -> Episode:
    episode = make_episode(Turn([1], [token], [1], reward), group=group)
    step = episode.steps[0]
    return replace(episode, steps=(replace(step, state=replace(step.state, seed=seed)),))


def coin_tosses() -> Batch:
    """Groups of the tokens 10 … 17, each rewarded by the toss of a coin."""
    random = np.random.default_rng(0)
    return Batch.from_episodes(
        [
            seeded(10 + token, float(random.random() < 0.5), int(random.integers(2**32)), group)
            for group in range(GROUPS)
            for token in range(SIZE)
        ]
    )


@pytest.mark.parametrize(
    ("name", "settings", "sign"),
    [("expert-iteration", {"keep": 1}, 1), ("online-dpo", {}, 1), ("online-dpo", {}, -1)],
)
def test_a_coin_toss_prefers_no_token(name, settings, sign):
    batch = coin_tosses()
    parts = [batch.select(batch.group == number) for number in range(GROUPS)]
    algorithm = make_algorithm(name, **settings)
    counts = np.zeros(SIZE)
    for part in (part.with_(group=part.group * 0) for part in parts):
        chosen = algorithm.advantages(part)[:, 1] * sign > 0
        for token in part.tokens[chosen, 1].tolist():
            counts[token - 10] += 1
    assert counts.sum() > 0.9 * GROUPS
    expected = counts.sum() / SIZE
    assert float(((counts - expected) ** 2 / expected).sum()) < 24.3  # chi-square with 7 degrees: p = 0.001


def test_the_seed_of_the_real_loop_reaches_the_batch():
    class Toss(Env):
        def respond(self, state: State, text: str, finish: Finish) -> Response:
            return Response(float(self.np_random.random() < 0.5), terminated=True)

    kind, seen = find_algorithm("online-dpo"), []
    settings = kind.Config(iterations=1, problems_per_iteration=2, group_size=4, eval_problems=0)
    algorithm = kind(chat(), Toss(TRAIN), settings, None, Remembering())
    credit = algorithm.advantages
    algorithm.advantages = lambda batch: seen.append(batch) or credit(batch)
    algorithm.train()
    seeds = {episode.steps[0].state.seed for episode in algorithm.buffer.of_iteration(0)}
    assert set(seen[0].seed.tolist()) == seeds
    assert len(seeds) == 8
