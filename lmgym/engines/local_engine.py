"""The base class of in-process engines: request ids, a queue of waiting rows, and passes until a row is done."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence

import torch

from lmgym.engines.engine import Completion, Engine, Request
from lmgym.engines.row import Row
from lmgym.models.language_model import LanguageModel


class LocalEngine(Engine):
    """Rows wait in order; a subclass admits them and samples one token per pass for all that are running."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self._waiting: list[Row] = []
        self._rows: dict[int, Row] = {}
        self._next_request_id = 0

    @property
    def dtype_name(self) -> str:
        """That of the model, unless the engine rounds its weights."""
        return self.model.dtype_name

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """Queues requests and returns their ids."""
        first = self._next_request_id
        self._next_request_id += len(requests)
        rows = [Row.start(first + index, request) for index, request in enumerate(requests)]
        self._rows |= {row.request_id: row for row in rows}
        self._waiting += rows
        return [row.request_id for row in rows]

    @torch.inference_mode()
    def wait(self, request_ids: Collection[int]) -> dict[int, Completion]:
        """Samples until at least one of these requests is finished, and returns all finished ones, each once."""
        pending = [request_id for request_id in request_ids if request_id in self._rows]
        finished = self._take_finished(pending)
        while pending and not finished:
            finished = self.advance(pending)
        return finished

    @torch.inference_mode()
    def advance(self, request_ids: Collection[int]) -> dict[int, Completion]:
        """One forward pass; returns those of these requests that are finished, each once."""
        self._advance()
        return self._take_finished(request_ids)

    def cancel(self, request_ids: Collection[int]) -> None:
        """Drops requests whose completions are no longer needed."""
        for request_id in request_ids:
            if request_id in self._rows:
                self._rows.pop(request_id).done = True
        self._waiting = [row for row in self._waiting if not row.done]

    def _take_finished(self, request_ids: Collection[int]) -> dict[int, Completion]:
        done = [request_id for request_id in request_ids if self._rows[request_id].done]
        return {request_id: self._rows.pop(request_id).completion for request_id in done}

    @abstractmethod
    def release_cache(self) -> None:
        """Frees the KV cache before the weights change; unfinished requests are recomputed."""

    @abstractmethod
    def _advance(self) -> None:
        """One forward pass: every running row samples its next token."""
