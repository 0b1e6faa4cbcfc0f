"""The engine that is right for every architecture: each token is a whole forward pass, and nothing is kept."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lmgym.engines.engine import Completion, Request
from lmgym.engines.row import Row, choose
from lmgym.learning.language_model import LanguageModel


class PlainEngine:
    """Recomputes everything: slow, and the ground truth of every faster engine."""

    def __init__(self, model: LanguageModel, max_rows: int = 32) -> None:
        self.model = model
        self.max_rows = max_rows

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Continues every request, some rows at a time."""
        rows = [Row.start(request, self.model.version) for request in requests]
        for start in range(0, len(rows), self.max_rows):
            active = rows[start : start + self.max_rows]
            while active:
                choose(active, self._next_logits(active), self.model.stop_ids)
                active = [row for row in active if not row.done]
        return [row.completion for row in rows]

    def _next_logits(self, rows: list[Row]) -> Tensor:
        """Logits [rows, vocabulary] after the last token of each; padding is on the right and never looked at."""
        sequences = [[*row.request.prompt, *row.completion.token_ids] for row in rows]
        tokens = torch.zeros(len(rows), max(map(len, sequences)), dtype=torch.long)
        for line, sequence in enumerate(sequences):
            tokens[line, : len(sequence)] = torch.tensor(sequence)
        hidden = self.model.plain_hidden_states(tokens.to(self.model.device))
        last = hidden[torch.arange(len(rows)), torch.tensor([len(sequence) - 1 for sequence in sequences])]
        with self.model.autocast():
            return self.model.head(last)
