"""The protocol of an engine: it knows token ids, log-probabilities and policy versions, and nothing of text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lmgym.models.distribution import FULL_SOFTMAX, Distribution
from lmgym.types import Finish


@dataclass(frozen=True)
class Request:
    """One sequence to continue; it is data, so that an engine may live in another process."""

    prompt: tuple[int, ...]
    max_tokens: int
    distribution: Distribution = FULL_SOFTMAX
    """What to sample from; temperature 0 is greedy."""
    seed: int = 0
    """All of a request's randomness: the same seed samples the same tokens, whatever else is in the batch."""
    draws: int = 0
    """How many tokens of this seed's random stream earlier requests have sampled.

    An action that is asked for in several requests thus samples the tokens that one request would have sampled.
    """
    stop_ids: frozenset[int] = frozenset()
    """Ids that end the completion, which keeps them; the model's own end tokens always do."""


@dataclass
class Completion:
    """What was sampled after a prompt."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish = "length"
    """`eos`: an end token of the model; `stop`: one of the request's `stop_ids`; `length`: `max_tokens` are sampled."""
    policy_version: int = 0
    """The version that sampled the first token."""


class Engine(Protocol):
    """Continues many sequences at once; each is returned as soon as it is finished."""

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """Queues requests and gives each a request id."""
        ...

    def wait(self, request_ids: Collection[int]) -> dict[int, Completion]:
        """Samples until at least one of these requests is finished, and gives all of them that are, each once."""
        ...

    def cancel(self, request_ids: Collection[int]) -> None:
        """Drops requests whose completions are no longer needed."""
        ...

    def release_cache(self) -> None:
        """Frees the KV cache, because the weights are about to change; unfinished requests are computed again."""
        ...

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Submits requests and waits for all of them."""
        ...
