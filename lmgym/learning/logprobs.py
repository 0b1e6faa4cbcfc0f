"""Log-probabilities and entropies of sampled tokens, without ever holding the logits of a whole batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmgym.learning.attention import TrunkReader, TrunkRecorder
from lmgym.learning.language_model import LanguageModel
from lmgym.learning.packing import pack
from lmgym.learning.vocabulary_head import VocabularyHead


class TokenScorer:
    """Scores episodes as right-padded rows; what they begin with alike is computed once, backward included.

    Two levels are shared: the trunk that all rows begin with, once per scorer, and the stem (the problem) that
    neighbouring rows begin with, once per call.
    """

    def __init__(self, model: LanguageModel, trunk: Tensor, temperature: float) -> None:
        self.model = model
        self.temperature = temperature
        self.trunk_length = len(trunk) if model.can_share else 0
        self._recorded: list[Tensor] = []
        self._leaves: list[Tensor] = []
        if self.trunk_length:
            recorder = TrunkRecorder()
            trunk = trunk.to(model.device)
            model.hidden_states(trunk[None], torch.arange(len(trunk), device=model.device)[None], recorder)
            self._recorded = recorder.keys + recorder.values
            self._leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in self._recorded]

    def score(self, tokens: Tensor, mask: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy [rows, length] of each token given those before it; 0 where the mask is 0."""
        chosen = mask[:, 1:]
        states, targets = self._states_before(tokens, mask, lengths)[chosen], tokens[:, 1:][chosen]
        head = self.model.head
        with torch.autocast(self.model.device.type, enabled=False):
            chosen_logprobs, chosen_entropies = VocabularyHead.apply(
                states.to(self.model.dtype), head.weight, getattr(head, "bias", None), targets, self.temperature
            )
        blank = torch.zeros(tokens.shape, device=tokens.device)
        logprobs = blank.masked_scatter(mask, chosen_logprobs)
        entropies = blank.masked_scatter(mask, chosen_entropies.detach())
        return logprobs, entropies

    def _states_before(self, tokens: Tensor, mask: Tensor, lengths: Tensor) -> _States:
        """The hidden state that predicts each token but the first, to be read where one is chosen."""
        if not self.model.can_share:
            return _States(self.model.plain_hidden_states(tokens).flatten(0, 1), _plain_places(tokens)[:, :-1])
        packing = pack(tokens, mask, lengths, self.trunk_length)
        layers = len(self._leaves) // 2
        reader = TrunkReader(
            self._leaves[:layers], self._leaves[layers:], packing.visible(self.trunk_length), self.model.dtype
        )
        hidden = self.model.hidden_states(packing.tokens, packing.positions, reader)
        return _States(hidden.flatten(0, 1), packing.places[:, :-1])

    def backward_trunk(self) -> None:
        """Sends the gradients that the rows left on the trunk's keys and values on into the weights."""
        pairs = [
            (recorded, leaf.grad)
            for recorded, leaf in zip(self._recorded, self._leaves, strict=True)
            if leaf.grad is not None
        ]
        if pairs:
            torch.autograd.backward([recorded for recorded, _ in pairs], [gradient for _, gradient in pairs])


@dataclass(frozen=True)
class _States:
    """Hidden states [places, size], looked up by where each token of a batch stands."""

    hidden: Tensor
    places: Tensor

    def __getitem__(self, chosen: Tensor) -> Tensor:
        return self.hidden[self.places[chosen]]


def _plain_places(tokens: Tensor) -> Tensor:
    return torch.arange(tokens.numel(), device=tokens.device).view(tokens.shape)


def common_trunk(tokens: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """The longest beginning that all rows share and that leaves each of them one token before its first chosen one."""
    same = (tokens == tokens[:1]).all(dim=0)
    shared = int(same.long().cumprod(dim=0).sum())
    first_chosen = int(torch.where(mask.any(dim=1), mask.long().argmax(dim=1), lengths).min())
    return tokens[0, : max(min(shared, first_chosen - 1), 0)]
