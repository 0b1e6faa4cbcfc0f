"""Exact sampling that costs little: one uniform number per row, found in a two-level cumulative sum."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

BLOCK = 128


def choose_tokens(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draws one id per row of logits [rows, vocabulary] by inverting the distribution at `uniforms`.

    Returns the ids and their log-probabilities at the row's temperature; temperature 0 takes the likeliest id, whose
    log-probability is reported at temperature 1.
    """
    greedy = temperatures == 0
    scaled = logits.float() / torch.where(greedy, 1.0, temperatures)[:, None]
    top, best = scaled.max(dim=-1)
    weights = (scaled - top[:, None]).exp_()
    padding = -weights.shape[1] % BLOCK
    blocks = torch.nn.functional.pad(weights, (0, padding)).view(len(weights), -1, BLOCK)
    # The sums are float64 so that the rare tail of a large vocabulary is not rounded away.
    cumulative = blocks.sum(dim=-1).double().cumsum(dim=-1)
    total = cumulative[:, -1:]
    target = uniforms[:, None].double() * total
    block = torch.searchsorted(cumulative, target, right=True).clamp_(max=cumulative.shape[1] - 1)
    before = torch.where(block > 0, cumulative.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = blocks[torch.arange(len(blocks), device=blocks.device), block[:, 0]].double()
    inside_sums = inside.cumsum(dim=-1)
    place = torch.searchsorted(inside_sums, target - before, right=True)
    # Rounding may point behind the last id of a block that has any probability: step back to that id.
    last = inside.shape[1] - 1 - (inside > 0).flip(-1).long().argmax(dim=-1, keepdim=True)
    drawn = (block * BLOCK + torch.minimum(place, last))[:, 0]
    chosen = torch.where(greedy, best, drawn)
    logprobs = scaled.gather(1, chosen[:, None])[:, 0] - top - total[:, 0].log().float()
    return chosen, logprobs


def uniform_stream(seed: int) -> np.random.Generator:
    """The source of a request's uniform numbers, one per sampled token."""
    return np.random.Generator(np.random.Philox(seed))
