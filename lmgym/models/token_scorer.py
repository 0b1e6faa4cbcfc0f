"""Log-probabilities and entropies of sampled tokens, without ever holding the logits of a whole batch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lmgym.models.attention import TreeReader, TrunkRecorder
from lmgym.models.distribution import Distribution
from lmgym.models.language_model import LanguageModel
from lmgym.models.prefix_tree import pack
from lmgym.models.vocabulary_head import VocabularyHead


class Scores(NamedTuple):
    """What a model thinks of each chosen token [rows, length], with gradients; 0 where the mask is 0."""

    logprobs: Tensor
    entropies: Tensor
    values: Tensor
    """How well it will go, seen just before the token; 0 without a value head."""
    last_values: Tensor
    """[rows] how well it would go on, seen after a row's last token; 0 without a value head."""


class TokenScorer:
    """Scores episodes as right-padded rows; what they begin with alike is computed once, backward included.

    The trunk that all rows begin with is computed once per scorer; what neighbouring rows begin with, be it the
    problem, an earlier step or half a sentence, once per call.
    """

    def __init__(
        self,
        model: LanguageModel,
        trunk: Tensor,
        distribution: Distribution,
        value_head: nn.Module | None = None,
        reads_vocabulary: bool = True,
    ) -> None:
        """A critic of its own need not read the vocabulary: then only values are computed."""
        self.model = model
        self.distribution = distribution
        self.value_head = value_head
        self.reads_vocabulary = reads_vocabulary
        self.trunk_length = len(trunk) if model.can_share else 0
        self._recorded: list[Tensor] = []
        self._leaves: list[Tensor] = []
        if self.trunk_length:
            recorder = TrunkRecorder()
            trunk = trunk.to(model.device)
            model.hidden_states(trunk[None], torch.arange(len(trunk), device=model.device)[None], recorder)
            self._recorded = recorder.keys + recorder.values
            self._leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in self._recorded]

    def score(self, tokens: Tensor, mask: Tensor, lengths: Tensor) -> Scores:
        """Log-probability and entropy of each token given those before it, and the value before it."""
        hidden, places = self._hidden_states(tokens, lengths)
        before, targets = places[:, :-1][mask[:, 1:]], tokens[:, 1:][mask[:, 1:]]
        blank = torch.zeros(tokens.shape, device=tokens.device)
        logprobs = entropies = values = blank
        last_values = blank[:, 0]
        if self.reads_vocabulary:
            found = self._read_vocabulary(hidden, before, targets)
            logprobs, entropies = (blank.masked_scatter(mask, each) for each in found)
        if self.value_head is not None:
            values = blank.masked_scatter(mask, self.value_head(hidden[before].float())[:, 0])
            last = places.gather(1, lengths[:, None] - 1)[:, 0]
            last_values = self.value_head(hidden[last].float())[:, 0]
        return Scores(logprobs, entropies, values, last_values)

    def _read_vocabulary(self, hidden: Tensor, before: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """One place in the tree and one token after it is one number, in however many rows it stands."""
        pairs, again = torch.stack([before, targets], dim=1).unique(dim=0, return_inverse=True)
        head = self.model.head
        with torch.autocast(self.model.device.type, enabled=False):
            logprobs, entropies = VocabularyHead.apply(
                hidden[pairs[:, 0]].to(self.model.dtype),
                head.weight,
                getattr(head, "bias", None),
                pairs[:, 1],
                self.distribution,
                self.model.logit_transform,
            )
        return logprobs[again], entropies[again]

    def _hidden_states(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """States [places, size], and the place [rows, length] of each token among them."""
        if not self.model.can_share:
            places = torch.arange(tokens.numel(), device=tokens.device).view(tokens.shape)
            return self.model.plain_hidden_states(tokens).flatten(0, 1), places
        tree = pack(tokens, lengths, self.trunk_length)
        layers = len(self._leaves) // 2
        reader = TreeReader(self._leaves[:layers], self._leaves[layers:], tree.ends, self.model.dtype)
        return self.model.hidden_states(tree.tokens[None], tree.positions[None], reader)[0], tree.places

    def backward_trunk(self) -> None:
        """Sends the gradients that the rows left on the trunk's keys and values on into the weights."""
        pairs = [
            (recorded, leaf.grad)
            for recorded, leaf in zip(self._recorded, self._leaves, strict=True)
            if leaf.grad is not None
        ]
        if pairs:
            torch.autograd.backward([recorded for recorded, _ in pairs], [gradient for _, gradient in pairs])


def common_trunk(tokens: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """The longest beginning that all rows share and that leaves each of them one token before its first chosen one."""
    same = (tokens == tokens[:1]).all(dim=0)
    shared = int(same.long().cumprod(dim=0).sum())
    first_chosen = int(torch.where(mask.any(dim=1), mask.long().argmax(dim=1), lengths).min())
    return tokens[0, : max(min(shared, first_chosen - 1), 0)]
