"""Log-probabilities, entropies and values of sampled tokens, with gradients, computing every shared token once.

    tokens [episodes, length]  =  shared prefix [prefix]  |  remaining tokens of each episode, right-padded
                                  (few-shot examples)        (problem, steps, environment replies)

    once per TokenScorer (one optimiser step):

        shared prefix ── forward, PrefixRecorder ──> recorded keys, values    per layer [1, kv_heads, prefix, size]
                                                        │ detach
                                                        v
                                                     leaf keys, values        same shapes, with a .grad of their own
    once per score() (one micro-batch):                 │
                                                        v
        build_prefix_tree ──> [nodes] ── forward, TreeAttention ──> hidden    [nodes, hidden_size]
                                                                      │
        token t is predicted by the state of token t − 1:             │ node_of[:, :-1][mask[:, 1:]]
                                                                      v
                                             states before sampled tokens     [sampled, hidden_size]
                                                                      │ equal (node, token) pairs once
                                                                      v
                                 VocabularyHead, value head ──> scores        [pairs] -> [sampled] -> [episodes, length]

    backward:

        loss.backward()    of every micro-batch: into the weights through the tree, and into leaf.grad, where the
                           gradients of all micro-batches add up
        backward_prefix()  once, after the last micro-batch: from leaf.grad through the recorded keys and values into
                           the weights

Invariants: column 0 is never sampled (mask[:, 0] is False). The shared prefix ends at least one token before the first
sampled token and before the last token of every episode, so each state that is read is a node of the tree. The result
equals a plain forward pass over every episode; the split into micro-batches does not change the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from lmgym.models.attention import PrefixRecorder
from lmgym.models.distribution import Distribution
from lmgym.models.flex_tree_attention import FlexTreeAttention
from lmgym.models.language_model import LanguageModel
from lmgym.models.prefix_tree import build_prefix_tree
from lmgym.models.tree_attention import TreeAttention
from lmgym.models.vocabulary_head import VocabularyHead


@dataclass(frozen=True)
class Scores:
    """What the current model computes for a micro-batch, with gradients; column t is about token t, as in `Batch`."""

    logprobs: Tensor
    """[episodes, length] log-probability of each sampled token under the sampling distribution; 0 where mask is 0."""
    entropies: Tensor
    """[episodes, length] entropy of the distribution each sampled token was drawn from; 0 where mask is 0."""
    values: Tensor
    """[episodes, length] value of the state before each sampled token; 0 where mask is 0, or without a value head."""
    last_values: Tensor
    """[episodes] value of the state after the last token, to bootstrap truncated episodes; 0 without a value head."""

    def cpu(self) -> Scores:
        """The same numbers on the CPU, without gradients."""
        return Scores(*(getattr(self, each.name).detach().cpu() for each in fields(self)))


class TokenScorer:
    """Scores right-padded episodes with a model, computing shared prefixes once in both directions.

    The prefix that all episodes share is computed once per scorer; prefixes that consecutive episodes share, once per
    call of `score`. A scorer is valid until the weights change.
    """

    def __init__(
        self,
        model: LanguageModel,
        prefix: Tensor,
        distribution: Distribution,
        value_head: nn.Module | None = None,
        computes_logprobs: bool = True,
    ) -> None:
        """Computes the shared prefix [prefix] of ids; a separate critic sets `computes_logprobs` False: values only."""
        self.model = model
        self.distribution = distribution
        self.value_head = value_head
        self.computes_logprobs = computes_logprobs
        # A sharded network gathers its weights for calls of modules, and the gradients of keys and values bypass those.
        self.prefix_length = len(prefix) if model.shares_prefixes and not model.is_sharded else 0
        # Keys of all layers, then values of all layers.
        self._recorded: list[Tensor] = []
        self._leaves: list[Tensor] = []
        if self.prefix_length:
            recorder = PrefixRecorder()
            prefix = prefix.to(model.device)
            model.hidden_states(prefix[None], torch.arange(len(prefix), device=model.device)[None], recorder)
            self._recorded = recorder.keys + recorder.values
            self._leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in self._recorded]

    def score(self, tokens: Tensor, mask: Tensor, lengths: Tensor) -> Scores:
        """Scores the tokens [episodes, length] where mask [episodes, length] is True, given all tokens before them."""
        return Scores(*self.model.run(self._score, tokens, mask, lengths))

    def _score(self, tokens: Tensor, mask: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        hidden, node_of = self._hidden_states(tokens, lengths)
        previous = node_of[:, :-1][mask[:, 1:]]  # [sampled] node of the token before each sampled one
        sampled = tokens[:, 1:][mask[:, 1:]]  # [sampled] ids
        zeros = torch.zeros(tokens.shape, device=tokens.device)
        logprobs = entropies = values = zeros
        last_values = zeros[:, 0]
        if self.computes_logprobs:
            by_token = self._logprobs_and_entropies(hidden, previous, sampled)
            logprobs, entropies = (zeros.masked_scatter(mask, each) for each in by_token)
        if self.value_head is not None:
            values = zeros.masked_scatter(mask, self.value_head(hidden[previous].float())[:, 0])
            last_node = node_of.gather(1, lengths[:, None] - 1)[:, 0]
            last_values = self.value_head(hidden[last_node].float())[:, 0]
        return logprobs, entropies, values, last_values

    def _logprobs_and_entropies(self, hidden: Tensor, previous: Tensor, sampled: Tensor) -> tuple[Tensor, Tensor]:
        """[sampled] each; episodes that sampled the same token after the same node share one row of the head."""
        pairs, pair_of = torch.stack([previous, sampled], dim=1).unique(dim=0, return_inverse=True)
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
        return logprobs[pair_of], entropies[pair_of]

    def _hidden_states(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [nodes, hidden_size], and the node of each token [episodes, length]."""
        if not self.model.shares_prefixes:
            node_of = torch.arange(tokens.numel(), device=tokens.device).view(tokens.shape)
            return self.model.plain_hidden_states(tokens).flatten(0, 1), node_of
        tree = build_prefix_tree(tokens, lengths, self.prefix_length)
        layers = len(self._leaves) // 2
        kind = FlexTreeAttention if self.model.uses_flex_attention else TreeAttention
        backend = kind(self._leaves[:layers], self._leaves[layers:], tree.subtree_end)
        return self.model.hidden_states(tree.tokens[None], tree.positions[None], backend)[0], tree.node_of

    def backward_prefix(self) -> None:
        """Backpropagates the gradients on the shared prefix's keys and values; call it after the last micro-batch."""
        pairs = [
            (recorded, leaf.grad)
            for recorded, leaf in zip(self._recorded, self._leaves, strict=True)
            if leaf.grad is not None
        ]
        if pairs:
            torch.autograd.backward([recorded for recorded, _ in pairs], [gradient for _, gradient in pairs])


def common_prefix(tokens: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """The ids [prefix] of the longest prefix of all episodes that ends a token before the first sampled or last one.

    The remaining token is needed in the tree, because its hidden state predicts the first sampled token.
    """
    equal = (tokens == tokens[:1]).all(dim=0)  # [length]
    shared = int(equal.long().cumprod(dim=0).sum())
    first_sampled = int(torch.where(mask.any(dim=1), mask.long().argmax(dim=1), lengths).min())
    return tokens[0, : max(min(shared, first_sampled - 1), 0)]
