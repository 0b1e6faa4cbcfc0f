"""Environments by name: register one, list them, make one."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium

from lmgym.envs.env import Env, MadeFrom
from lmgym.envs.mixture import Mixture, is_mixture, parse_mixture
from lmgym.envs.procedural import SPLITS
from lmgym.envs.wrappers.options import WRAPPER_OPTIONS, wrapped
from lmgym.errors import UserError
from lmgym.lookup import import_module, import_named, nearest


@dataclass(frozen=True)
class Registration:
    """The name, factory and description of an environment."""

    name: str
    factory: Callable[..., Env]
    gym_id: str
    description: str
    splits: tuple[str, ...]
    """Empty if they are unknown."""

    @property
    def options(self) -> dict[str, Any]:
        """The options that the environment takes, apart from `split`, with their defaults."""
        parameters = inspect.signature(self.factory).parameters.values()
        return {
            parameter.name: parameter.default
            for parameter in parameters
            if parameter.name != "split" and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        }

    @property
    def required(self) -> list[str]:
        """The options that have no default."""
        return [name for name, default in self.options.items() if default is inspect.Parameter.empty]

    @property
    def takes_any_option(self) -> bool:
        """Whether the environment takes `**options`, so that their names cannot be checked."""
        parameters = inspect.signature(self.factory).parameters.values()
        return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


_registrations: dict[str, Registration] = {}
_families: dict[str, tuple[str, str]] = {}
"""By their prefix, environments of another package: where their class is, `module:Class`, and the option that takes
what follows the prefix."""


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


def register_family(prefix: str, place: str, option: str) -> None:
    """Names all environments of a package at once: `prefix/task` is the class at `module:Class` with that option."""
    _families[prefix] = (place, option)


def registrations() -> list[Registration]:
    """Lists every registered environment by name."""
    return [_registrations[name] for name in sorted(_registrations)]


def names() -> list[str]:
    """Lists the names that `make` knows."""
    return sorted(_registrations)


def make(name: str, split: str = "train", **options: Any) -> Env:
    """Makes an environment by its name, from a JSON or JSONL file by its path, or from a module by `module:Class`.

    A name may carry its split: `gsm8k:test` is the test split whatever `split` says. `module:name` also finds a name
    that the module registers. A file has no splits; a user's class gets the split if its `__init__` takes one. Every
    environment takes the options of wrappers (see lmgym/envs/wrappers), and a sum of names is a mixture.
    """
    own, of_wrappers = _divided(name, options)
    env, name, split = _made(name, split, own)
    env = wrapped(env, of_wrappers, training=lambda: _training(name, own))
    env.made_from = MadeFrom(name, split, options)
    return env


def _training(name: str, options: dict[str, Any]) -> Env:
    """The training split of an environment, for worked examples."""
    if is_mixture(name) and any(_resolve(member.name)[1] not in ("", "train") for member in parse_mixture(name)):
        raise UserError(f"{name} fixes a split: worked examples must come from training problems.")
    return _made(name, "train", options)[0]


def _divided(name: str, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the environment itself, and those of wrappers around it."""
    own_options = {} if is_mixture(name) else _resolve(name)[0].options
    own = {option: options[option] for option in options if option not in WRAPPER_OPTIONS or option in own_options}
    return own, {option: options[option] for option in options if option not in own}


def _made(name: str, split: str, options: dict[str, Any]) -> tuple[Env, str, str]:
    """The environment without wrappers, its name, and its split, which the name may carry."""
    if is_mixture(name):
        return _mixture(name, split, options), name, split
    registration, named_split = _resolve(name)
    name, split = registration.name, named_split or split
    family, _, member = name.partition("/")
    if family in _families:
        options = {_families[family][1]: member, **options}
    if _is_file(registration):
        options = {"path": name, **options}
    if registration.splits and split not in registration.splits:
        raise UserError(f'{name} has no split "{split}": it has {", ".join(registration.splits)}.')
    unknown = [option for option in options if option not in registration.options]
    if unknown and not registration.takes_any_option:
        known, guess = ", ".join(registration.options), _nearest(unknown[0], [*registration.options, *WRAPPER_OPTIONS])
        raise UserError(
            f'{name} has no option "{unknown[0]}"{guess}; it has {known or "none"}, and as every environment '
            f"{', '.join(WRAPPER_OPTIONS)}."
        )
    missing = [option for option in registration.required if option not in options]
    if missing:
        raise UserError(
            f'{name} needs the option "{missing[0]}": pass it, or give it a default in the environment\'s __init__.'
        )
    if "split" in inspect.signature(registration.factory).parameters:
        options = {"split": split, **options}
    return registration.factory(**options), name, split


def takes_option(name: str, option: str) -> bool:
    """Whether an environment, named as for `make`, has an option of this name."""
    if option in WRAPPER_OPTIONS:
        return True
    if is_mixture(name):
        return any(takes_option(member.name, option) for member in parse_mixture(name))
    registration, _ = _resolve(name)
    return option in registration.options or registration.takes_any_option


def _mixture(expression: str, split: str, options: dict[str, Any]) -> Env:
    """The mixture of a sum of names; an option goes to the environments that have it."""
    lost = [option for option in options if not takes_option(expression, option)]
    if lost:
        raise UserError(f'no environment of {expression} has an option "{lost[0]}".')
    members = parse_mixture(expression)
    made: dict[str, Env] = {}
    for member in members:
        shared = {option: options[option] for option in options if takes_option(member.name, option)}
        made[member.name] = make(member.name, split, **{**shared, **member.options})
    return Mixture(made, [member.weight for member in members])


def _resolve(name: str) -> tuple[Registration, str]:
    """The registration of a name, a file or a user's class, and the split that the name carries, if any."""
    name = _after_import(name)
    bare, _, split = name.partition(":")
    if split and bare in _registrations:
        return _registrations[bare], split
    family, _, member = name.partition("/")
    if family in _families and member:
        # A member may be an address, http://localhost:8000: only a word after the last colon is a split.
        head, _, word = name.rpartition(":")
        bare, split = (head, word) if word.isidentifier() else (name, "")
        return replace(_own_class(_families[family][0]), name=bare, splits=SPLITS), split
    if name not in _registrations and _is_file_name(name):
        from lmgym.envs.dataset_file import DatasetFile

        return Registration(name, DatasetFile, "", "", ()), ""
    return find(name), ""


def _is_file(registration: Registration) -> bool:
    is_named = registration.name in _registrations or registration.name.partition("/")[0] in _families
    return not is_named and _is_file_name(registration.name)


def _after_import(name: str) -> str:
    """`my-env` for `my_module:my-env`, once the module that registers it is imported; else the name itself."""
    module, _, registered = name.partition(":")
    if not registered or module in _registrations or _is_file_name(name):
        return name
    with contextlib.suppress(UserError):  # `find` reports a module that cannot be imported
        import_module(module, repr(name))
    return registered if registered.partition(":")[0] in _registrations else name


def find(name: str) -> Registration:
    """The registration of a name or of a user's own `module:Class`; an unknown name is an error."""
    if name in _registrations:
        return _registrations[name]
    if ":" in name:
        return _own_class(name)
    raise UserError(
        f'There is no environment "{name}"{_nearest(name, _registrations)}; there are {", ".join(names())}, '
        "any JSON or JSONL file by its path, and your own class as module:Class."
    )


def _own_class(name: str) -> Registration:
    try:
        found = import_named(name)
    except UserError as error:
        guess = _nearest(name.partition(":")[0], _registrations)
        raise UserError(f'There is no environment "{name}"{guess}: {error}') from error
    if not (isinstance(found, type) and issubclass(found, Env)):
        raise UserError(f"{name} is not an environment: it must be a class that extends lmgym.Env.")
    return Registration(name, found, "", (inspect.getdoc(found) or "").split("\n")[0], ())


def _nearest(given: str, known: Iterable[str]) -> str:
    meant = nearest(given, known)
    return f' (did you mean "{meant}"?)' if meant else ""


def _is_file_name(name: str) -> bool:
    return name.endswith((".json", ".jsonl")) or "/" in name or "\\" in name or Path(name).exists()
