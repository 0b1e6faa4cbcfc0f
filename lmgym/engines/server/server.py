"""One inference server: what the engine asks of it, whatever software it runs."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lmgym.engines.engine import Completion, Request
from lmgym.engines.server.http import ServerUnreachableError, checked_url

CONTROL_SECONDS = 60.0
"""The deadline of short calls: status, pause, resume, weight version."""

RELOAD_SECONDS = 600.0
"""The deadline of loading weights."""


@dataclass(frozen=True)
class ServerStatus:
    """What a server says about itself."""

    model: str
    weight_version: str
    running: int = 0
    """Requests that are being decoded."""
    waiting: int = 0
    """Requests that wait for a place in the batch."""
    tokens: int = 0
    """Tokens that it has sampled since it started."""
    prompt_tokens: int = 0
    """Prompt tokens that it was asked to read since it started."""
    cached_tokens: int = 0
    """Those of the prompt tokens that its prefix cache had."""

    @property
    def cache_hit_share(self) -> float:
        """The share of prompt tokens that the prefix cache had."""
        return self.cached_tokens / max(1, self.prompt_tokens)


class Server(ABC):
    """A server at an address; all methods may be called from several threads."""

    kind: ClassVar[str]
    """What --engine calls it."""

    def __init__(self, url: str, seconds: float = 600.0) -> None:
        """A completion that takes longer than `seconds` counts as unanswered."""
        self.url = checked_url(url)
        self.seconds = seconds
        self.version: int | None = None
        """The policy version whose weights it has; None before it was given any."""
        self.owner = uuid.uuid4().hex[:8]
        """Whose weights they are: others may use the same server, now or before."""

    @property
    def label(self) -> str:
        """The name of the current weights: their owner and version."""
        return f"{self.owner}-{self.version}"

    def version_of(self, label: str) -> int:
        """The version of weights that this owner gave to the server; other weights make it unusable."""
        owner, _, version = label.rpartition("-")
        if owner != self.owner:
            raise ServerUnreachableError(f"{self.url} has other weights than it was given; was it restarted?")
        return int(version)

    @abstractmethod
    def complete(self, name: str, request: Request, eos_ids: frozenset[int]) -> Completion:
        """Samples a completion; `name` identifies the request for `abort`."""

    @abstractmethod
    def abort(self, names: list[str]) -> None:
        """Ends requests whose completions are no longer needed."""

    @abstractmethod
    def load_weights(self, folder: Path, version: int) -> None:
        """Replaces the weights by those of a folder that the server can read; running requests continue with them."""

    @abstractmethod
    def load_adapter(self, folder: Path, version: int) -> None:
        """Serves a LoRA adapter under the name of its version."""

    @abstractmethod
    def check_flags(self) -> None:
        """Refuses a server that was started without a flag that the engine needs."""

    @abstractmethod
    def status(self) -> ServerStatus:
        """What it is serving, and its load."""
