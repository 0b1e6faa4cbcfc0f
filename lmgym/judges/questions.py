"""Questions to a language model that judges: prompts, what fills them, and how a model of this process is asked."""

from __future__ import annotations

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


def asking(model: LanguageModel) -> Ask:
    """Asks a model of this process."""
    return lambda chats, answers: answer_probabilities(model, chats, answers)


def load_judge_prompt(name_or_path: str) -> str:
    """The text of a shipped prompt (`step`), or of a user's own file."""
    path = Path(name_or_path)
    if path.is_file():
        return path.read_text(encoding="utf-8")
    shipped = files("lmgym.judges") / "prompts" / f"{name_or_path}.txt"
    if not shipped.is_file():
        raise UserError(f"there is no prompt {name_or_path!r} for a judge: give the path of a text file.")
    return shipped.read_text(encoding="utf-8")


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
