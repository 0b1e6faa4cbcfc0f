"""Exact sampling at low cost: one uniform number selects a block of ids, a second one an id within it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lmgym.models.distribution import Distribution

BLOCK = 128


def choose_tokens(logits: Tensor, distribution: Distribution, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Samples one id per row of logits [rows, vocabulary], which it overwrites, with `uniforms` [rows, 2].

    Returns the ids and their log-probabilities under the distribution that they were sampled from. One number for both
    levels would be exact too, but in the tail of a large vocabulary, where the probability of an id is smaller than the
    rounding error of the cumulative sum, the sampled id would depend on the other rows of the batch.
    """
    logits = distribution.apply_(logits.float())
    top, best = logits.max(dim=-1)
    shifted = logits.sub_(top[:, None])
    weights = shifted.exp()
    padding = -weights.shape[1] % BLOCK
    blocks = torch.nn.functional.pad(weights, (0, padding)) if padding else weights
    blocks = blocks.view(len(weights), -1, BLOCK)
    # The sums are float64 so that the rare tail of a large vocabulary is not rounded away.
    cumulative = blocks.sum(dim=-1).double().cumsum(dim=-1)
    total = cumulative[:, -1:]
    chosen = best if distribution.temperature == 0 else _invert(blocks, cumulative, uniforms.double())
    return chosen, shifted.gather(1, chosen[:, None])[:, 0] - total[:, 0].log().float()


def _invert(blocks: Tensor, cumulative: Tensor, uniforms: Tensor) -> Tensor:
    """Samples from weights [rows, blocks, BLOCK]: the first number selects a block, the second an id in it."""
    block = _find(cumulative, uniforms[:, :1])
    inside = blocks[torch.arange(len(blocks), device=blocks.device), block].double().cumsum(dim=-1)
    return block * BLOCK + _find(inside, uniforms[:, 1:])


def _find(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    """The index at a fraction [rows, 1] of the total in cumulative sums [rows, entries]; never one of weight 0."""
    total = cumulative[:, -1:].contiguous()
    index = torch.searchsorted(cumulative, uniforms * total, right=True)
    last = torch.searchsorted(cumulative, total)  # rounding may point past the last entry of positive weight
    return torch.minimum(index, last)[:, 0]


def uniform_stream(seed: int, draws: int = 0) -> np.random.Generator:
    """The random stream of a request, two uniform numbers per sampled token, without those of the first `draws`."""
    stream = np.random.Generator(np.random.Philox(seed))
    stream.random(2 * draws)
    return stream
