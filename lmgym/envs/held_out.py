"""The validation split of a dataset that has none: problems held out of its training split."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lmgym.errors import UserError
from lmgym.types import Problem

VALIDATION_SIZE = 500
_SEED = 0


def hold_out_validation(problems: Sequence[Problem]) -> tuple[list[Problem], list[Problem]]:
    """Splits training problems into those to train on, in their order, and the last 500 of a seeded shuffle."""
    if len(problems) <= VALIDATION_SIZE:
        raise UserError(
            f"Validation holds out {VALIDATION_SIZE} training problems, but there are only {len(problems)}: "
            "use the train split, or a larger file."
        )
    order = list(range(len(problems)))
    random.Random(_SEED).shuffle(order)
    held_out = order[-VALIDATION_SIZE:]
    chosen = set(held_out)
    training = [problem for index, problem in enumerate(problems) if index not in chosen]
    return training, [problems[index] for index in held_out]
