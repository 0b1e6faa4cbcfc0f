"""Questions to a language model that judges: prompts, what fills them, and how a model of this process is asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from torch import Tensor

from lmgym.errors import UserError
from lmgym.judges.answer_probabilities import answer_probabilities
from lmgym.models.language_model import LanguageModel
from lmgym.types import Episode, Message

Ask = Callable[[Sequence[Sequence[Message]], Sequence[str]], Tensor]
"""Probabilities [chats, answers] of the given answers."""

EMPTY = "(nothing yet)"

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def asking(model: LanguageModel) -> Ask:
    """Asks a model of this process."""
    return lambda chats, answers: answer_probabilities(model, chats, answers)


def shipped_prompt(name: str) -> str:
    """The text of a prompt that comes with lmgym."""
    return (files("lmgym.judges") / "prompts" / f"{name}.txt").read_text(encoding="utf-8")


def load_judge_prompt(name_or_path: str, values: Sequence[str]) -> str:
    """The text of a user's own file, or of a shipped prompt.

    `values` are the names in braces that will be replaced, the last of them what is judged, which must be there.
    """
    path = Path(name_or_path)
    try:
        template = path.read_text(encoding="utf-8") if path.is_file() else shipped_prompt(name_or_path)
    except (OSError, UnicodeDecodeError):
        raise UserError(f"there is no prompt {name_or_path!r} for a judge: give the path of a text file.") from None
    unknown = [name for name in _PLACEHOLDER.findall(template) if name not in values]
    if unknown or values[-1] not in _PLACEHOLDER.findall(template):
        fault = f"has {{{unknown[0]}}}, which this judge does not know" if unknown else f"lacks {{{values[-1]}}}"
        allowed = ", ".join(f"{{{name}}}" for name in values)
        raise UserError(f"the prompt {name_or_path} {fault}: it may use {allowed}.")
    return template


def filled(template: str, **values: str) -> list[Message]:
    """One question to the judge; braces within the values stay as they are."""
    for name, value in values.items():
        if f"{{{name}}}" not in template:
            continue
        template = template.replace(f"{{{name}}}", value.replace("{", "\x02").replace("}", "\x03"))
    return [{"role": "user", "content": template.replace("\x02", "{").replace("\x03", "}").strip()}]


def before_and_step(episode: Episode) -> list[tuple[str, str]]:
    """For each step, all that the policy wrote before it, and its own text."""
    pairs: list[tuple[str, str]] = []
    written = ""
    for step in episode.steps:
        pairs.append((written.strip() or EMPTY, step.action.text.strip()))
        written += step.action.text
    return pairs
