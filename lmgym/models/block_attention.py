"""Attention of a block of queries over a block of keys, forward and backward; blocks of keys are merged exactly.

With queries q, keys k, values v and s = scaling · q kᵀ (−inf where a causal block hides a key):

    lse = logsumexp(s)                  one number per query
    out = softmax(s) v = exp(s − lse) v

Attention over two sets of keys follows from the results of each:

    lse = logaddexp(lse₁, lse₂)
    out = (1 − w) · out₁ + w · out₂     with w = exp(lse₂ − lse) = sigmoid(lse₂ − lse₁)

The backward pass of a block takes `out` and `lse` over *all* keys of its queries, because then exp(s − lse) are the
probabilities of the whole softmax, and the gradients of the blocks simply add up. Neither direction keeps scores.

Shapes: queries [kv_heads, group, queries, size], where `group` heads share a key head; keys and values
[kv_heads, keys, size]; `lse` [kv_heads, group, queries] in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALL_BLOCK = 2**17
"""Scores per head below which a block's backward pass in float32 is faster than the kernel for 16-bit numbers."""

QUERIES = 256
"""Queries whose scores the portable implementation holds at the same time."""


def attend_block(query: Tensor, key: Tensor, value: Tensor, causal: bool, scaling: float) -> tuple[Tensor, Tensor]:
    """Returns `out`, like the queries, and `lse`; a causal block has as many keys as queries, in the same order."""
    if query.device.type == "cpu":
        keys, values = _of_every_head(key, query), _of_every_head(value, query)
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, keys, values, 0.0, causal, scale=scaling
        )
    return portable_block(query, key, value, causal, scaling)


def attend_block_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value; `gradient`, `out` and `lse` are those over all keys of the queries."""
    if query.device.type == "cpu":
        if query.shape[2] * key.shape[1] < SMALL_BLOCK:
            gradient, query, key, value, out = (each.float() for each in (gradient, query, key, value, out))
        keys, values = _of_every_head(key, query), _of_every_head(value, query)
        by_query, by_key, by_value = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, keys, values, out, lse, 0.0, causal, scale=scaling
        )
        return by_query, by_key.sum(dim=1), by_value.sum(dim=1)
    return portable_block_backward(gradient, query, key, value, out, lse, causal, scaling)


def merge_(out: Tensor, lse: Tensor, other_out: Tensor, other_lse: Tensor) -> None:
    """Adds the attention over another set of keys, in place."""
    weight = torch.sigmoid(other_lse - lse)
    out.lerp_(other_out.to(out.dtype), weight[..., None])
    lse.copy_(torch.logaddexp(lse, other_lse))


def portable_block(query: Tensor, key: Tensor, value: Tensor, causal: bool, scaling: float) -> tuple[Tensor, Tensor]:
    """`attend_block` by matrix products alone, for devices without a kernel that returns `lse`."""
    outs, lses = [], []
    for start in range(0, query.shape[2], QUERIES):
        scores = _scores(query, key, start, causal, scaling)
        lse = scores.logsumexp(dim=-1)
        outs.append((scores.sub_(lse[..., None]).exp_().to(value.dtype) @ value[:, None]).to(query.dtype))
        lses.append(lse)
    return torch.cat(outs, dim=2), torch.cat(lses, dim=2)


def portable_block_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`attend_block_backward` by matrix products alone.

    With p = exp(s − lse) and g = ∂loss/∂out:  ∂v = pᵀ g,  ∂s = p · (g vᵀ − Σ g·out),  ∂q = ∂s k,  ∂k = ∂sᵀ q.
    """
    by_query = torch.empty_like(query)
    by_key, by_value = torch.zeros_like(key, dtype=torch.float32), torch.zeros_like(value, dtype=torch.float32)
    for start in range(0, query.shape[2], QUERIES):
        rows = slice(start, start + QUERIES)
        upstream = gradient[:, :, rows]
        weights = _scores(query, key, start, causal, scaling).sub_(lse[:, :, rows, None]).exp_()
        by_value += (weights.to(value.dtype).transpose(2, 3) @ upstream).sum(dim=1)
        inner = (upstream.float() * out[:, :, rows].float()).sum(dim=-1, keepdim=True)
        by_scores = weights.mul_((upstream @ value[:, None].transpose(2, 3)).float().sub_(inner)).mul_(scaling)
        by_scores = by_scores.to(query.dtype)
        by_query[:, :, rows] = by_scores @ key[:, None]
        by_key += (by_scores.transpose(2, 3) @ query[:, :, rows]).sum(dim=1)
    return by_query, by_key.to(key.dtype), by_value.to(value.dtype)


def _scores(query: Tensor, key: Tensor, start: int, causal: bool, scaling: float) -> Tensor:
    """s [kv_heads, group, QUERIES, keys] in float32, of the queries from `start`."""
    part = query[:, :, start : start + QUERIES]
    scores = (part @ key[:, None].transpose(2, 3)).float().mul_(scaling)
    if causal:
        hidden = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).triu_(start + 1)
        scores.masked_fill_(hidden, float("-inf"))
    return scores


def _of_every_head(tensor: Tensor, query: Tensor) -> Tensor:
    """Keys or values [kv_heads, group, keys, size]: the heads of a group read the same memory."""
    return tensor[:, None].expand(-1, query.shape[1], -1, -1)
