"""A request on its way, and how a batch of them takes its next tokens: the same for every engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from lmgym.engines.engine import Completion, Request
from lmgym.engines.sampling import choose_tokens, uniform_stream


@dataclass
class Row:
    """A request on its way: what it wrote, and what is still to be forced into it."""

    request: Request
    completion: Completion
    uniforms: np.random.Generator
    forced: deque[int] = field(default_factory=deque)
    done: bool = False

    @classmethod
    def start(cls, request: Request, policy_version: int) -> Row:
        """A row that has written nothing yet."""
        return cls(request, Completion(policy_version=policy_version), uniform_stream(request.seed))

    def accept(self, token: int, logprob: float, stop_ids: frozenset[int]) -> None:
        """Writes the next token, a forced one if any waits, else the sampled one, and asks the watcher."""
        written = self.completion
        if self.forced:
            written.token_ids.append(self.forced.popleft())
            written.logprobs.append(0.0)
            written.mask.append(0)
        else:
            written.token_ids.append(token)
            written.logprobs.append(logprob)
            written.mask.append(1)
            if token in stop_ids:
                written.finish_reason, self.done = "stop", True
                return
            verdict = self.request.watch(written.token_ids)
            if verdict.stop:
                written.finish_reason, self.done = "stop", True
                return
            self.forced.extend(verdict.force)
        self.done = len(written.token_ids) >= self.request.max_tokens


def choose(rows: Sequence[Row], logits: Tensor, stop_ids: frozenset[int]) -> None:
    """Samples for every row from logits [rows, vocabulary] and lets it accept what was drawn."""
    if logits.device.type == "mps":
        logits = logits.cpu()  # exact sampling adds up in float64, which MPS does not have
    device = logits.device
    temperatures = torch.tensor([row.request.temperature for row in rows], device=device)
    uniforms = torch.tensor([0.0 if row.forced else row.uniforms.random() for row in rows], dtype=torch.float64)
    tokens, logprobs = choose_tokens(logits, temperatures, uniforms.to(device))
    for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
        row.accept(token, logprob, stop_ids)
