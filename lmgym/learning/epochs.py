"""The optimiser steps of an iteration: epochs over a batch, in minibatches, for every learner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lmgym.learning.batch import Batch
from lmgym.learning.learner import Learner, Loss, Update


def run_epochs(
    objectives: Sequence[tuple[Learner, Loss]], batch: Batch, epochs: Sequence[np.random.Generator], minibatches: int
) -> Update:
    """One epoch per random generator; every learner takes a step on each minibatch.

    Returns what the first learner computed before its first step. Later ratios are against those log-probs. With
    several minibatches the weights move within the first epoch, so they come from a pass over the batch beforehand.
    """
    learner = objectives[0][0]
    first = learner.observe(batch) if minibatches > 1 else None
    current = batch if first is None else batch.after_first_update(first.logprobs)
    steps: list[Update] = []
    for random in epochs:
        for part in [current] if minibatches == 1 else current.minibatches(minibatches, random):
            updates = [learner.step(part, loss) for learner, loss in objectives]
            steps += [update for update in updates if update is not None]
            if first is None:
                first, current = steps[0], batch.after_first_update(steps[0].logprobs)
    assert first is not None
    # A gradient that is not finite is reported, whichever step had it: that step was skipped.
    norm = next((step.gradient_norm for step in steps if not math.isfinite(step.gradient_norm)), steps[0].gradient_norm)
    return replace(first, loss=steps[0].loss, gradient_norm=norm)
