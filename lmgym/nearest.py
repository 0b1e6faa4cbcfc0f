"""The name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The most similar known name, if one is similar; of equals, the one that has the same letters."""
    spelled = {_plain(name): name for name in known}
    close = difflib.get_close_matches(_plain(given), spelled, n=5)
    same_letters = [name for name in close if sorted(name) == sorted(_plain(given))]
    return next((spelled[name] for name in [*same_letters, *close]), None)


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
