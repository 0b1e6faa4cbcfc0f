"""Exact sampling that costs little: a block of ids by one uniform number, an id within it by another."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lmgym.models.distribution import Distribution

BLOCK = 128


def choose_tokens(logits: Tensor, distribution: Distribution, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draws one id per row of logits [rows, vocabulary], which it uses up, with `uniforms` [rows, 2].

    Returns the ids and their log-probabilities under the distribution that they were drawn from. One number for both
    levels would be exact too, but in the tail of a large vocabulary, where an id is thinner than the rounding of the
    sum before it, the draw would depend on who else is in the batch.
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
    """The block of weights [rows, blocks, BLOCK] where the first number falls, and the id where the second does."""
    block = _find(cumulative, uniforms[:, :1])
    inside = blocks[torch.arange(len(blocks), device=blocks.device), block].double().cumsum(dim=-1)
    return block * BLOCK + _find(inside, uniforms[:, 1:])


def _find(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    """Where a share [rows, 1] of the whole falls in running sums [rows, places]; never where nothing was added."""
    total = cumulative[:, -1:].contiguous()
    place = torch.searchsorted(cumulative, uniforms * total, right=True)
    last = torch.searchsorted(cumulative, total)  # rounding may point behind the last place that added something
    return torch.minimum(place, last)[:, 0]


def uniform_stream(seed: int, draws: int = 0) -> np.random.Generator:
    """The source of a request's uniform numbers, two per sampled token, behind those of so many tokens."""
    stream = np.random.Generator(np.random.Philox(seed))
    stream.random(2 * draws)
    return stream
