"""What a user wrote, found by its name: `module:name`, importable from the current directory too."""

from __future__ import annotations

import difflib
import importlib
import sys
from typing import Any

from lmgym.errors import UserError


def import_named(place: str) -> Any:
    """Imports the object that `module:name` names; what cannot be imported is one sentence that says why."""
    module_name, _, name = place.partition(":")
    if not module_name or not name:
        raise UserError(f"{place!r} cannot be imported: write it as module:name.")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the current directory, as `python -m` would find it
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        reason = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise UserError(f"{place!r} cannot be imported: {reason}.") from error
    if not hasattr(module, name):
        close = difflib.get_close_matches(name, vars(module), 1)
        guess = f" (did you mean {close[0]!r}?)" if close else ""
        raise UserError(f"{place!r} cannot be imported: the module {module_name} has no {name!r}{guess}.")
    return getattr(module, name)
