"""A request on its way, and how a batch of them takes its next tokens: the same for every engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lmgym.engines.engine import Completion, Request
from lmgym.engines.sampling import choose_tokens, uniform_stream
from lmgym.models.language_model import LanguageModel


@dataclass(eq=False)
class Row:
    """A request on its way: all it has read and written, and where its randomness stands."""

    ticket: int
    request: Request
    tokens: list[int]
    completion: Completion
    uniforms: np.random.Generator
    done: bool = False

    @classmethod
    def start(cls, ticket: int, request: Request) -> Row:
        """A row that has written nothing yet."""
        return cls(ticket, request, list(request.prompt), Completion(), uniform_stream(request.seed))

    def accept(self, token: int, logprob: float, model: LanguageModel) -> None:
        """Writes a sampled token, and behind it what the watcher forces, as far as the budget goes."""
        written = self.completion
        if not written.token_ids:
            written.policy_version = model.version
        self._write(token, logprob, 1)
        verdict = None if token in model.stop_ids else self.request.watch(written.token_ids)
        if verdict is None or verdict.stop:
            written.finish_reason, self.done = "stop", True
            return
        for forced in verdict.force[: self.request.max_tokens - len(written.token_ids)]:
            self._write(forced, 0.0, 0)
        self.done = len(written.token_ids) >= self.request.max_tokens

    def _write(self, token: int, logprob: float, mask: int) -> None:
        self.tokens.append(token)
        self.completion.token_ids.append(token)
        self.completion.logprobs.append(logprob)
        self.completion.mask.append(mask)


def choose(rows: Sequence[Row], logits: Tensor, model: LanguageModel) -> None:
    """Samples for every row from logits [rows, vocabulary] and lets it accept what was drawn."""
    if logits.device.type == "mps":
        logits = logits.cpu()  # exact sampling adds up in float64, which MPS does not have
    for distribution in dict.fromkeys(row.request.distribution for row in rows):
        alike = [index for index, row in enumerate(rows) if row.request.distribution == distribution]
        some = logits if len(alike) == len(rows) else logits[alike]
        uniforms = torch.from_numpy(np.stack([rows[index].uniforms.random(2) for index in alike]))
        tokens, logprobs = choose_tokens(some, distribution, uniforms.to(logits.device))
        for index, token, logprob in zip(alike, tokens.tolist(), logprobs.tolist(), strict=True):
            rows[index].accept(token, logprob, model)
