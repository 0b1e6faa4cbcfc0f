"""Random sources in the attributes of an environment: each episode has its own stream, set by its seed."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np


def is_random_source(value: object) -> bool:
    """Whether it is a random generator of the standard library, NumPy or torch; it does not import torch."""
    torch_generator = getattr(sys.modules.get("torch"), "Generator", ())
    return isinstance(value, (random.Random, np.random.Generator, np.random.RandomState, torch_generator))


def reseed(sources: Iterable[Any], seed: int) -> None:
    """Reseeds every source with its own stream, derived from `seed` and the source's position."""
    distinct = {id(source): source for source in sources}
    for position, source in enumerate(distinct.values(), start=1):
        stream = int(np.random.SeedSequence([seed, position]).generate_state(1, np.uint64)[0])
        if isinstance(source, random.Random):
            source.seed(stream)
        elif isinstance(source, np.random.Generator):
            source.bit_generator.state = _like(source.bit_generator, stream).state
        elif isinstance(source, np.random.RandomState):
            fresh = np.random.RandomState(_like(source._bit_generator, stream))
            source.set_state(fresh.get_state(legacy=False))
        else:
            source.manual_seed(stream)


def _like(bit_generator: Any, seed: int) -> Any:
    return type(bit_generator)(seed)
