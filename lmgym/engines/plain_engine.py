"""The engine that is exact for every architecture: each token takes a full forward pass, without a KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from lmgym.engines.local_engine import LocalEngine
from lmgym.engines.row import Row, sample_next_tokens
from lmgym.models.language_model import LanguageModel


class PlainEngine(LocalEngine):
    """Recomputes the full sequence for every token: slow, and the reference that faster engines are tested against."""

    def __init__(self, model: LanguageModel, max_running: int = 32) -> None:
        super().__init__(model)
        self.max_running = max_running

    def release_cache(self) -> None:
        """There is no cache."""

    def _advance(self) -> None:
        running = self._waiting[: self.max_running]
        sample_next_tokens(running, self._next_logits(running), self.model)
        self._waiting = [row for row in self._waiting if not row.done]

    def _next_logits(self, rows: list[Row]) -> Tensor:
        """Logits [rows, vocabulary] after the last token of each; right padding does not affect them."""
        tokens = torch.zeros(len(rows), max(len(row.tokens) for row in rows), dtype=torch.long)
        for line, row in enumerate(rows):
            tokens[line, : len(row.tokens)] = torch.tensor(row.tokens)
        hidden = self.model.plain_hidden_states(tokens.to(self.model.device))
        last = hidden[torch.arange(len(rows)), torch.tensor([len(row.tokens) - 1 for row in rows])]
        return self.model.logits(last)
