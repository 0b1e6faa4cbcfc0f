"""Replay: whole groups of earlier iterations that an update learns from again."""

from __future__ import annotations

import numpy as np

from lmgym.buffer import Buffer
from lmgym.types import Episode


class Replay:
    """Samples episodes of earlier iterations, in whole groups, from a buffer."""

    def __init__(self, buffer: Buffer, episodes: int, seed: int) -> None:
        """`episodes` per iteration; 0 replays nothing."""
        self.buffer, self.episodes, self.seed = buffer, episodes, seed

    def sample(self, iteration: int) -> list[Episode]:
        """The episodes for this iteration: a function of the seed, the iteration and the buffer."""
        if not self.episodes:
            return []
        random = np.random.default_rng([self.seed, iteration, 1])
        return self.buffer.sample(self.episodes, random, before=iteration)
