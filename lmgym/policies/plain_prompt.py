"""Conversations as plain text, for base models whose tokenizer has no chat template."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from lmgym.types import Message

NEXT_PROBLEM = "Problem:"
"""How a message to the model begins; a base model that has finished its solution goes on with a problem of its own."""

PARTS = {"system": "{}\n\n", "user": NEXT_PROBLEM + " {}\nSolution:\n", "assistant": "{}\n\n"}


def render_plain(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase) -> str:
    """Problems and solutions one below the other, up to where the next solution begins."""
    return _first_token(tokenizer) + "".join(PARTS[message["role"]].format(message["content"]) for message in messages)


def begins_next_problem(text: str) -> bool:
    """Whether the last line of a text is the beginning of another problem."""
    return text.rpartition("\n")[2].startswith(NEXT_PROBLEM)


def before_next_problem(text: str) -> str:
    """What was written before the model began another problem."""
    return text[: text.rindex(NEXT_PROBLEM)].rstrip("\n")


def _first_token(tokenizer: PreTrainedTokenizerBase) -> str:
    """The token that the model expects at the beginning of every text, if it expects one."""
    first = tokenizer("a")["input_ids"][:1]
    return str(tokenizer.bos_token) if first == [tokenizer.bos_token_id] else ""
