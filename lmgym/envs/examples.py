"""Worked examples for the prompt, from the training split and never from problems to evaluate on."""

from __future__ import annotations

import numpy as np

from lmgym.envs.env import Env
from lmgym.errors import UserError
from lmgym.types import Problem


def few_shot_examples(env: Env, count: int, seed: int = 0) -> list[Problem]:
    """Samples `count` distinct problems; of a procedural task from its second half, which training does not reach."""
    size = len(env.problems)
    if count < 0 or count > size:
        raise UserError(f"{count} worked examples were requested, but the training task has {size} problems.")
    first = size // 2 if size > 1_000_000 else 0
    indices = first + np.random.default_rng(seed).choice(size - first, size=count, replace=False, shuffle=True)
    return [env.problems[int(index)] for index in indices]
