"""The options of an environment as the texts that a command line and config.json hold, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def literal(text: str) -> Any:
    """An option's value as a number, a truth, nothing or a list where it reads like one."""
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
    """The text that `literal` reads as this value, if there is one."""
    value = str(value) if isinstance(value, Path) else value
    value = list(value) if isinstance(value, tuple) else value
    text = "".join(f"{item}," for item in value) if isinstance(value, list) else str(value)
    read = literal(text)
    return text if type(read) is type(value) and read == value else None
