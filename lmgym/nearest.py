"""The name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The most similar known name, if one is similar; of equals, the one that has the same letters."""
    close = difflib.get_close_matches(given.lower(), list(known), n=5)
    same_letters = [name for name in close if sorted(name) == sorted(given.lower())]
    return next(iter([*same_letters, *close]), None)
