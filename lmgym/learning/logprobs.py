"""Log-probabilities and entropies of sampled tokens, without ever holding the logits of a whole batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lmgym.learning.attention import TrunkReader, TrunkRecorder
from lmgym.learning.language_model import LanguageModel

CHUNK = 512
"""How many positions' logits stand in memory at once."""


class TokenScorer:
    """Scores right-padded rows of tokens; what all rows begin with (the trunk) is computed once, backward included."""

    def __init__(self, model: LanguageModel, trunk: Tensor, temperature: float) -> None:
        self.model = model
        self.temperature = temperature
        self.trunk_length = len(trunk)
        self._recorded: list[Tensor] = []
        self._leaves: list[Tensor] = []
        self._reader = TrunkReader([], [])
        if self.trunk_length:
            recorder = TrunkRecorder()
            trunk = trunk.to(model.device)
            model.hidden_states(trunk[None], torch.arange(len(trunk), device=model.device)[None], recorder)
            self._recorded = recorder.keys + recorder.values
            self._leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in self._recorded]
            layers = len(recorder.keys)
            self._reader = TrunkReader(self._leaves[:layers], self._leaves[layers:])

    def score(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy [rows, length] of each token given those before it; 0 where the mask is 0."""
        own, own_mask = tokens[:, self.trunk_length :], mask[:, self.trunk_length :].clone()
        assert not own_mask[:, 0].any(), "a token cannot be scored without one before it"
        if self.model.can_share:
            positions = torch.arange(self.trunk_length, tokens.shape[1], device=tokens.device).expand_as(own)
            reader = self._reader if self.trunk_length else TrunkRecorder()
            hidden = self.model.hidden_states(own, positions, reader)
        else:
            hidden = self.model.plain_hidden_states(own)
        chosen = own_mask[:, 1:]
        states, targets = hidden[:, :-1][chosen], own[:, 1:][chosen]
        parts = [
            checkpoint(self._head, states[start : start + CHUNK], targets[start : start + CHUNK], use_reentrant=False)
            for start in range(0, len(targets), CHUNK)
        ]
        logprobs = torch.zeros(tokens.shape, device=tokens.device)
        entropies = torch.zeros_like(logprobs)
        if parts:
            where = torch.zeros_like(mask)
            where[:, self.trunk_length + 1 :] = chosen
            logprobs = logprobs.masked_scatter(where, torch.cat([part[0] for part in parts]))
            entropies = entropies.masked_scatter(where, torch.cat([part[1] for part in parts]))
        return logprobs, entropies

    def backward_trunk(self) -> None:
        """Sends the gradients that the rows left on the trunk's keys and values on into the weights."""
        pairs = [
            (recorded, leaf.grad)
            for recorded, leaf in zip(self._recorded, self._leaves, strict=True)
            if leaf.grad is not None
        ]
        if pairs:
            torch.autograd.backward([recorded for recorded, _ in pairs], [gradient for _, gradient in pairs])

    def _head(self, states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        with self.model.autocast():
            logits = self.model.head(states)
        scaled = logits.float() / self.temperature
        normaliser = scaled.logsumexp(dim=-1)
        logprobs = scaled.gather(-1, targets[:, None])[:, 0] - normaliser
        with torch.no_grad():
            entropies = normaliser - (scaled.softmax(dim=-1) * scaled).sum(dim=-1)
        return logprobs, entropies


def common_trunk(tokens: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """The longest beginning that all rows share and that leaves each of them one token before its first chosen one."""
    same = (tokens == tokens[:1]).all(dim=0)
    shared = int(same.long().cumprod(dim=0).sum())
    first_chosen = int(torch.where(mask.any(dim=1), mask.long().argmax(dim=1), lengths).min())
    return tokens[0, : max(min(shared, first_chosen - 1, int(lengths.min()) - 1), 0)]
