"""What a user wrote, found by its name: `module` or `module:name`, importable from the current directory too."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from lmgym.errors import UserError
from lmgym.nearest import nearest


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
