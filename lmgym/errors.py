"""The exceptions that are answered with a sentence and not with a traceback."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

LIBRARIES = [Path(__file__).parent, *(Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib"))]
"""Where the code is that the user did not write."""


class UserError(Exception):
    """One sentence on what was given, what was expected and what to do; the command line prints it and exits 2."""


class InterruptedRunError(UserError):
    """Something that a run needs is gone; what it has learnt is saved, and it can be resumed."""


def described(error: Exception) -> str:
    """A UserError's sentence; of any other error its type and message, and the user's line of code that raised it."""
    if isinstance(error, UserError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_own(frame.filename)]
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{place}"


def _is_own(filename: str) -> bool:
    """Whether a file is the user's; `<frozen importlib>` and the like are none."""
    return not filename.startswith("<") and not any(Path(filename).is_relative_to(folder) for folder in LIBRARIES)
