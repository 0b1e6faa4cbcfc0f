"""Answers within `<answer>` tags, as models of the R1 kind and reasoning-gym write them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lmgym.rewards.comparison import Comparison
from lmgym.rewards.final_answer import TextAnswer

_TAGGED = re.compile(r"<answer>((?:(?!<answer>).){0,2000}?)</answer>", re.DOTALL)


@dataclass(frozen=True)
class TaggedAnswer:
    """The text within the last `<answer>…</answer>`."""

    instruction: str = "Put the final answer within <answer> and </answer>."

    def show(self, answer: str) -> str:
        return f"<answer>{answer}</answer>"

    def strict(self, text: str) -> str | None:
        found = _TAGGED.findall(text)
        return found[-1].strip() if found else None

    def lenient(self, text: str) -> str | None:
        """The tagged answer, or else the last line."""
        lines = text.strip().splitlines()
        return self.strict(text) or (lines[-1] if lines else None)

    def compare(self, answer: str, given: str) -> Comparison:
        """As texts, or as numbers."""
        return TextAnswer().compare(answer, given)
