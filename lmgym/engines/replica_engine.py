"""The engine of a sharded policy: each process samples with a whole copy of the weights, made after every update."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lmgym.engines.engine import Completion, Engine, Request
from lmgym.engines.local_engine import LocalEngine
from lmgym.models.language_model import LanguageModel


class ReplicaEngine(Engine):
    """Passes every call to a local engine, whose model is a copy of the sharded one."""

    def __init__(self, model: LanguageModel, engine: LocalEngine) -> None:
        """`engine` has a frozen copy of the model, made before that was sharded."""
        self.model = model
        self.engine = engine

    @property
    def dtype_name(self) -> str:
        """That of the local engine."""
        return self.engine.dtype_name

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """Queues requests and returns their ids."""
        return self.engine.submit(requests)

    def wait(self, request_ids: Collection[int]) -> dict[int, Completion]:
        """Samples until at least one of these requests is finished, and returns all finished ones, each once."""
        return self.engine.wait(request_ids)

    def cancel(self, request_ids: Collection[int]) -> None:
        """Drops requests whose completions are no longer needed."""
        self.engine.cancel(request_ids)

    def release_cache(self) -> None:
        """Frees the KV cache and the packed weights."""
        self.engine.release_cache()

    def update_weights(self) -> None:
        """Gathers the weights, one tensor at a time."""
        self.engine.model.refresh(self.model)
        self.engine.model.version = self.model.version
