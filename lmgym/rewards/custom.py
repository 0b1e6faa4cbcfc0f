"""User-defined rewards, imported by name: `module:function`."""

from __future__ import annotations

import inspect

from lmgym.errors import UserError
from lmgym.lookup import import_named
from lmgym.rewards.reward import Reward


def load_reward(place: str) -> Reward:
    """Imports a function of (problem, text); an object with another signature is an error before the run starts."""
    found = import_named(place)
    if not callable(found) or isinstance(found, type):
        raise UserError(f"{place} is not a reward: it is {_kind(found)}, and must be a function of (problem, text).")
    try:
        inspect.signature(found).bind("problem", "text")
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{place} is not a reward: it must be callable as reward(problem, text), but {error}."
        ) from error
    return found


def _kind(found: object) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else f"of type {type(found).__name__}"
