"""The protocol of an engine: token ids, log-probabilities and policy versions, never text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from lmgym.models.distribution import FULL_SOFTMAX, Distribution
from lmgym.types import Finish


@dataclass(frozen=True)
class Request:
    """One sequence to continue; it is plain data, so that an engine can run in another process."""

    prompt: tuple[int, ...]
    max_tokens: int
    distribution: Distribution = FULL_SOFTMAX
    """The sampling distribution; temperature 0 is greedy."""
    seed: int = 0
    """The only source of randomness: the same seed samples the same tokens, whatever else is in the batch."""
    draws: int = 0
    """Number of tokens that earlier requests have sampled from this seed's random stream.

    An action that takes several requests thus samples the tokens that one request would have sampled.
    """
    stop_ids: frozenset[int] = frozenset()
    """Ids that end the completion and are part of it; the model's EOS ids always end it."""
    group: int = 0
    """Requests of one group share a prompt, so an engine of several servers sends them to the same one."""


@dataclass
class Completion:
    """The tokens sampled after a prompt."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish = "length"
    """`eos`: an EOS token of the model; `stop`: one of the request's `stop_ids`; `length`: `max_tokens` is reached."""
    versions: list[int] = field(default_factory=list)
    """The policy version that sampled each token."""


class Engine(Protocol):
    """Continues many sequences at once; each is returned as soon as it is finished."""

    serves_all_processes: ClassVar[bool] = False
    """Whether the first process of a run samples all episodes; otherwise each process samples its share."""

    @property
    def dtype_name(self) -> str:
        """The precision that it samples in; what a server computes in is not known here."""
        return "server"

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """Queues requests and returns their ids."""
        ...

    def wait(self, request_ids: Collection[int]) -> dict[int, Completion]:
        """Samples until at least one of these requests is finished, and returns all finished ones, each once."""
        ...

    def cancel(self, request_ids: Collection[int]) -> None:
        """Drops requests whose completions are no longer needed."""
        ...

    def release_cache(self) -> None:
        """Frees the KV cache before the weights change; unfinished requests are recomputed."""
        ...

    def update_weights(self) -> None:
        """Takes over the weights after an update; every process of a run calls it, so that they can be gathered.

        An engine that reads the weights of the model itself has nothing to do.
        """
        return

    def metrics(self) -> dict[str, float]:
        """What an iteration reports of the engine; by default nothing."""
        return {}

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Submits requests and waits for all of them."""
        request_ids = self.submit(requests)
        completions: dict[int, Completion] = {}
        while len(completions) < len(request_ids):
            completions |= self.wait([request_id for request_id in request_ids if request_id not in completions])
        return [completions[request_id] for request_id in request_ids]
