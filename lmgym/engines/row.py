"""A request in progress, and how a batch of requests samples its next tokens, shared by all local engines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lmgym.engines.engine import Completion, Request
from lmgym.engines.sampling import choose_tokens, uniform_stream
from lmgym.models.language_model import LanguageModel


@dataclass(eq=False)
class Row:
    """A request in progress: its prompt and sampled tokens, and the state of its random stream."""

    request_id: int
    request: Request
    tokens: list[int]
    """The prompt and the sampled tokens."""
    completion: Completion
    uniforms: np.random.Generator
    done: bool = False

    @classmethod
    def start(cls, request_id: int, request: Request) -> Row:
        """A row with no sampled tokens yet."""
        uniforms = uniform_stream(request.seed, request.draws)
        return cls(request_id, request, list(request.prompt), Completion(), uniforms)

    def append(self, token: int, logprob: float, eos_ids: Collection[int], policy_version: int) -> None:
        """Appends a sampled token and sets `done` if it is the last one."""
        completion = self.completion
        self.tokens.append(token)
        completion.token_ids.append(token)
        completion.logprobs.append(logprob)
        completion.versions.append(policy_version)
        if token in eos_ids:
            completion.finish, self.done = "eos", True
        elif token in self.request.stop_ids:
            completion.finish, self.done = "stop", True
        else:
            self.done = len(completion.token_ids) >= self.request.max_tokens


def sample_next_tokens(rows: Sequence[Row], logits: Tensor, model: LanguageModel) -> None:
    """Samples a token for every row from logits [rows, vocabulary] and appends it."""
    if logits.device.type == "mps":
        logits = logits.cpu()  # exact sampling sums in float64, which MPS does not support
    eos_ids = model.eos_ids
    for distribution in dict.fromkeys(row.request.distribution for row in rows):
        selected = [index for index, row in enumerate(rows) if row.request.distribution == distribution]
        chosen = logits if len(selected) == len(rows) else logits[selected]
        uniforms = torch.from_numpy(np.stack([rows[index].uniforms.random(2) for index in selected]))
        tokens, logprobs = choose_tokens(chosen, distribution, uniforms.to(logits.device))
        for index, token, logprob in zip(selected, tokens.tolist(), logprobs.tolist(), strict=True):
            rows[index].append(token, logprob, eos_ids, model.version)
