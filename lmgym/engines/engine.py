"""The protocol of an engine: it knows token ids, log-probabilities and policy versions, and nothing of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lmgym.types import FinishReason


@dataclass(frozen=True)
class Verdict:
    """What a watcher wants after a sampled token: to go on, to stop, or to force some ids first."""

    stop: bool = False
    force: tuple[int, ...] = ()


GO_ON = Verdict()
STOP = Verdict(stop=True)

Watch = Callable[[Sequence[int]], Verdict]
"""Called with all ids written so far after each sampled one."""


def never_stop(_: Sequence[int]) -> Verdict:
    """The watcher that leaves everything to the model's own end token."""
    return GO_ON


@dataclass(frozen=True)
class Request:
    """One sequence to continue."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    seed: int = 0
    """All of a request's randomness: the same seed draws the same way, whatever shares the batch."""
    watch: Watch = never_stop


@dataclass
class Completion:
    """What was written after a prompt."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    finish_reason: FinishReason = "length"
    policy_version: int = 0


class Engine(Protocol):
    """Continues many sequences at once."""

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Continues each prompt until its watcher, the end token or its budget of tokens stops it."""
        ...
