"""Environment options as strings, as in a command line and config.json, and their parsing."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def literal(text: str) -> Any:
    """Parses an option as an int, a float, a bool, None or a comma-separated list; else returns the text."""
    named = {"true": True, "false": False, "none": None}
    if text.lower() in named:
        return named[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return [literal(part.strip()) for part in text.removesuffix(",").split(",")] if "," in text else text


def spelled(value: Any) -> str | None:
    """The text that `literal` parses as this value, or None."""
    value = str(value) if isinstance(value, Path) else value
    value = list(value) if isinstance(value, tuple) else value
    text = "".join(f"{item}," for item in value) if isinstance(value, list) else str(value)
    parsed = literal(text)
    return text if type(parsed) is type(value) and parsed == value else None
