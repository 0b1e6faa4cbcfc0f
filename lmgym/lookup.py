"""Names that a user gives: `module:name` is imported, and for a misspelt name the nearest one is suggested."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from lmgym.errors import UserError, described


def import_module(name: str, given: str) -> ModuleType:
    """Imports a module, searched in the current directory as by `python -m`; an error shows the name as `given`."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except Exception as error:
        reason = str(error) if isinstance(error, ImportError) else described(error)
        raise UserError(f"{given} cannot be imported from {Path.cwd()}: {reason}.") from error


def import_named(place: str) -> Any:
    """Imports the object that `module:name` names, or raises a UserError that says why it cannot."""
    module_name, _, name = place.partition(":")
    if not module_name or not name:
        raise UserError(f"{place!r} cannot be imported: write it as module:name.")
    module = import_module(module_name, repr(place))
    if not hasattr(module, name):
        meant = nearest(name, vars(module))
        guess = f" (did you mean {meant!r}?)" if meant else ""
        raise UserError(f"{place!r} cannot be imported: the module {module_name} has no {name!r}{guess}.")
    return getattr(module, name)


def import_path(thing: Any) -> str | None:
    """The `module:name` from which a class or function can be imported again, or None."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        return None
    return f"{module}:{name}" if getattr(importlib.import_module(str(module)), name, None) is thing else None


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The most similar known name, if any is similar; one with the same letters is preferred."""
    spelled = {_plain(name): name for name in known}
    close = difflib.get_close_matches(_plain(given), spelled, n=5)
    same_letters = [name for name in close if sorted(name) == sorted(_plain(given))]
    return next((spelled[name] for name in [*same_letters, *close]), None)


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
