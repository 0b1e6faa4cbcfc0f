"""The protocol of an engine: it knows token ids, log-probabilities and policy versions, and nothing of text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lmgym.models.distribution import FULL_SOFTMAX, Distribution
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
    distribution: Distribution = FULL_SOFTMAX
    """What to draw from; temperature 0 is greedy."""
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
    """The version that wrote the first token."""


class Engine(Protocol):
    """Continues many sequences at once; each leaves when its watcher, the end token or its budget stops it."""

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """Queues requests and gives each a ticket."""
        ...

    def finished(self, tickets: Collection[int]) -> dict[int, Completion]:
        """Works until at least one of these is done, and gives all of them that are."""
        ...

    def cancel(self, tickets: Collection[int]) -> None:
        """Forgets requests that nobody waits for any more."""
        ...

    def rest(self) -> None:
        """Gives back its memory, because the weights are about to change; what is in flight will begin again."""
        ...

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Continues every request to its end."""
        ...
