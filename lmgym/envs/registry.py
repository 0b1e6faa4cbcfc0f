"""Environments by name: register one, list them, make one."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from lmgym.envs.env import Env, MadeFrom
from lmgym.errors import UserError


@dataclass(frozen=True)
class Registration:
    """What is known of an environment before it is made."""

    name: str
    factory: Callable[..., Env]
    gym_id: str
    description: str
    splits: tuple[str, ...]

    @property
    def options(self) -> dict[str, Any]:
        """The options that the environment takes, apart from `split`, with their defaults."""
        parameters = inspect.signature(self.factory).parameters.values()
        return {parameter.name: parameter.default for parameter in parameters if parameter.name != "split"}


_registrations: dict[str, Registration] = {}


def register(
    name: str,
    factory: Callable[..., Env],
    gym_id: str = "",
    description: str = "",
    splits: Sequence[str] = ("train", "test"),
) -> None:
    """Gives an environment a name for `lmgym.make` and, with a `gym_id`, one for `gymnasium.make`."""
    description = description or (inspect.getdoc(factory) or "").split("\n")[0]
    _registrations[name] = Registration(name, factory, gym_id, description, tuple(splits))
    if gym_id and gym_id not in gymnasium.registry:
        gymnasium.register(gym_id, entry_point=factory)


def registrations() -> list[Registration]:
    """Lists every registered environment by name."""
    return [_registrations[name] for name in sorted(_registrations)]


def names() -> list[str]:
    """Lists the names that `make` knows."""
    return sorted(_registrations)


def make(name: str, split: str = "train", **options: Any) -> Env:
    """Makes an environment by its name, or from a JSON or JSONL file by its path (which has no splits).

    A name may carry its split: `gsm8k:test` is the test split whatever `split` says.
    """
    given = dict(options)
    bare, _, named_split = name.partition(":")
    if named_split and bare in _registrations:
        name, split = bare, named_split
    if name not in _registrations and _is_file_name(name):
        from lmgym.envs.dataset_file import DatasetFile

        registration = Registration(name, DatasetFile, "", "", (split,))
        options = {"path": name, **options}
    else:
        registration = find(name)
    if split not in registration.splits:
        raise UserError(f'{name} has no split "{split}": it has {" and ".join(registration.splits)}.')
    unknown = [option for option in options if option not in registration.options]
    if unknown:
        known, guess = ", ".join(registration.options), _nearest(unknown[0], registration.options)
        raise UserError(f'{name} has no option "{unknown[0]}"{guess}; it has {known}.')
    if "split" in inspect.signature(registration.factory).parameters:
        options = {"split": split, **options}
    env = registration.factory(**options)
    env.made_from = MadeFrom(name, split, given)
    return env


def find(name: str) -> Registration:
    """Gives what is known of a name, or an error that suggests the nearest one."""
    if name not in _registrations:
        known = ", ".join(names())
        raise UserError(
            f'There is no environment "{name}"{_nearest(name, _registrations)}; there are {known}, '
            "and any JSON or JSONL file by its path."
        )
    return _registrations[name]


def _nearest(given: str, known: Any) -> str:
    close = difflib.get_close_matches(given.lower().replace("_", "-"), {key.replace("_", "-"): 0 for key in known}, 1)
    match = next((key for key in known if close and key.replace("_", "-") == close[0]), None)
    return f' (did you mean "{match}"?)' if match else ""


def _is_file_name(name: str) -> bool:
    return name.endswith((".json", ".jsonl")) or "/" in name or "\\" in name or Path(name).exists()
