"""How a name that a user gives becomes a thing: `module:name` is imported, a misspelt name finds the nearest one."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from lmgym.errors import UserError


def import_module(name: str, asked: str) -> ModuleType:
    """Imports a module, found from the current directory as `python -m` would find it; `asked` is how it was named."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except Exception as error:
        reason = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise UserError(f"{asked} cannot be imported from {Path.cwd()}: {reason}.") from error


def import_named(place: str) -> Any:
    """Imports the object that `module:name` names; what cannot be imported is one sentence that says why."""
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
    """`module:name` of a class or function that can be imported again under it."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        return None
    return f"{module}:{name}" if getattr(importlib.import_module(str(module)), name, None) is thing else None


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The most similar known name, if one is similar; of equals, the one that has the same letters."""
    spelled = {_plain(name): name for name in known}
    close = difflib.get_close_matches(_plain(given), spelled, n=5)
    same_letters = [name for name in close if sorted(name) == sorted(_plain(given))]
    return next((spelled[name] for name in [*same_letters, *close]), None)


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
