"""Conversations as plain text, for base models whose tokenizer has no chat template."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from lmgym.types import Message

NEXT_PROBLEM = "Problem:"
"""The beginning of a user message; a base model that has finished its solution continues with another problem."""

PARTS = {
    "system": "{}\n\n",
    "user": NEXT_PROBLEM + " {}\nSolution:\n",
    "assistant": "{}\n\n",
    "tool": "Output: {}\nSolution:\n",
}


def render_plain(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase) -> str:
    """Renders problems and solutions in order, up to where the next solution begins."""
    return _first_token(tokenizer) + "".join(PARTS[message["role"]].format(message["content"]) for message in messages)


def begins_next_problem(text: str) -> bool:
    """Whether the last line of a text begins another problem."""
    return text.rpartition("\n")[2].startswith(NEXT_PROBLEM)


def before_next_problem(text: str) -> str:
    """The text before the beginning of another problem."""
    return text[: text.rindex(NEXT_PROBLEM)].rstrip("\n")


def _first_token(tokenizer: PreTrainedTokenizerBase) -> str:
    """The BOS token, if the tokenizer starts every text with it."""
    first = tokenizer("a")["input_ids"][:1]
    return str(tokenizer.bos_token) if first == [tokenizer.bos_token_id] else ""
