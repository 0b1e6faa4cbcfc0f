"""A request that is being served, and how a batch of them samples its next tokens: the same for every local engine."""

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
    """A request that is being served: its prompt and sampled tokens, and the state of its random stream."""

    request_id: int
    request: Request
    tokens: list[int]
    """The prompt and what was sampled after it."""
    completion: Completion
    uniforms: np.random.Generator
    done: bool = False

    @classmethod
    def start(cls, request_id: int, request: Request) -> Row:
        """A row that has sampled nothing yet."""
        uniforms = uniform_stream(request.seed, request.draws)
        return cls(request_id, request, list(request.prompt), Completion(), uniforms)

    def append(self, token: int, logprob: float, eos_ids: Collection[int], policy_version: int) -> None:
        """Adds a sampled token and notes whether it is the last one."""
        completion = self.completion
        if not completion.token_ids:
            completion.policy_version = policy_version
        self.tokens.append(token)
        completion.token_ids.append(token)
        completion.logprobs.append(logprob)
        if token in eos_ids:
            completion.finish, self.done = "eos", True
        elif token in self.request.stop_ids:
            completion.finish, self.done = "stop", True
        else:
            self.done = len(completion.token_ids) >= self.request.max_tokens


def sample_next_tokens(rows: Sequence[Row], logits: Tensor, model: LanguageModel) -> None:
    """Samples a token for every row from logits [rows, vocabulary] and appends it."""
    if logits.device.type == "mps":
        logits = logits.cpu()  # exact sampling adds up in float64, which MPS does not have
    eos_ids = model.eos_ids
    for distribution in dict.fromkeys(row.request.distribution for row in rows):
        alike = [index for index, row in enumerate(rows) if row.request.distribution == distribution]
        some = logits if len(alike) == len(rows) else logits[alike]
        uniforms = torch.from_numpy(np.stack([rows[index].uniforms.random(2) for index in alike]))
        tokens, logprobs = choose_tokens(some, distribution, uniforms.to(logits.device))
        for index, token, logprob in zip(alike, tokens.tolist(), logprobs.tolist(), strict=True):
            rows[index].append(token, logprob, eos_ids, model.version)
