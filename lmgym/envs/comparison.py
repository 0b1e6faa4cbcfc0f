"""Whether an environment still equals what its name and options make, or was changed afterwards."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from lmgym.envs import make
from lmgym.envs.env import Env, MadeFrom

UNCOMPARED = {"made_from", "spec", "metadata", "observation_space", "action_space"}
"""Attributes that depend on how the environment was made and not on what it does."""


def is_as_made(env: Env, made_from: MadeFrom) -> bool:
    """Whether the environment has the attributes of a newly made one, except those that each episode sets.

    What cannot be compared, such as a connection, counts as equal if it is of the same type.
    """
    try:
        again = make(made_from.name, made_from.split, **made_from.options)
    except Exception:  # of any kind: an environment that cannot be made again has no name
        return False
    before, clone = dict(vars(again)), env.clone()
    for each in (again, clone):
        each.reset(seed=0, options={"index": 0})
    lasting = {name for name, value in vars(again).items() if name in before and before[name] is value} - UNCOMPARED
    ours, theirs = vars(again), vars(clone)
    return type(again) is type(clone) and all(
        name in theirs and _are_equal(ours[name], theirs[name], {(id(again), id(clone))}) for name in lasting
    )


def _are_equal(ours: Any, theirs: Any, seen: set[tuple[int, int]]) -> bool:
    """Compares containers, functions and objects by value; `seen` holds the pairs that are being compared."""
    if ours is theirs or (id(ours), id(theirs)) in seen:
        return True
    if type(ours) is not type(theirs):
        return False
    seen.add((id(ours), id(theirs)))
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(_are_equal(*pair, seen) for pair in zip(ours, theirs, strict=True))
    if isinstance(ours, Mapping):
        return ours.keys() == theirs.keys() and all(_are_equal(ours[key], theirs[key], seen) for key in ours)
    if isinstance(ours, types.MethodType):
        return ours.__func__ is theirs.__func__ and _are_equal(ours.__self__, theirs.__self__, seen)
    if isinstance(ours, types.FunctionType):  # a nested function is a new object each time
        same = ours.__code__ is theirs.__code__ and ours.__defaults__ == theirs.__defaults__
        cells = zip(ours.__closure__ or (), theirs.__closure__ or (), strict=False)
        return same and all(_are_equal(mine.cell_contents, other.cell_contents, seen) for mine, other in cells)
    if hasattr(ours, "__dict__"):
        return vars(ours).keys() == vars(theirs).keys() and all(
            _are_equal(value, vars(theirs)[name], seen) for name, value in vars(ours).items()
        )
    return type(ours).__eq__ is object.__eq__ or _equal(ours, theirs)


def _equal(ours: Any, theirs: Any) -> bool:
    try:
        return bool(ours == theirs)
    except ValueError:  # arrays compare element by element
        return bool((ours == theirs).all())
