"""Attention of the nodes of a prefix tree over a shared prefix and over their ancestors, in blocks without masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmgym.models.block_attention import attend_block, attend_block_backward, merge_


@dataclass(frozen=True)
class Chain:
    """Nodes `start` … `end` − 1, each the only child of the one before; their other descendants end before `last`."""

    start: int
    end: int
    last: int

    @property
    def nodes(self) -> slice:
        """The chain itself."""
        return slice(self.start, self.end)

    @property
    def descendants(self) -> slice:
        """The nodes below the chain's last node."""
        return slice(self.end, self.last)


class TreeAttention:
    """Attention of the nodes of a prefix tree [1, heads, nodes, size] over a shared prefix and over their ancestors.

    The tree is cut into chains of nodes without a branch. In depth-first order a chain is a slice of the nodes, and so
    are all its descendants. The tree of prefix_tree.py, with x for "visible":

        0:2 ─ 1:3 ─┬─ 2:5 ─┬─ 3:6 ─ 4:7        chain    nodes   descendants
                   │       └─ 5:8              A        0 1     2 3 4 5 6
                   └─ 6:9                      B        2       3 4 5
                                               C        3 4     –
        query   prefix   0 1   2   3 4   5   6 D        5       –
        0         x      x                     E        6       –
        1         x      x x
        2         x      x x   x
        3         x      x x   x   x
        4         x      x x   x   x x
        5         x      x x   x         x
        6         x      x x                 x

    So the visible keys are, without any mask but the causal one,

        every chain over itself, causally  +  the descendants of a chain over all of it  +  all nodes over the prefix.

    A tree that is one chain is ordinary causal attention. Each block reads slices of queries, keys and values, and the
    results are merged (block_attention.py). Kept for the backward pass: query, key, value, output and one number per
    query and head, so memory is linear in the nodes.
    """

    def __init__(self, prefix_keys: list[Tensor], prefix_values: list[Tensor], subtree_end: Tensor) -> None:
        """Takes the prefix's keys and values per layer [1, kv_heads, prefix, size], or none, and the tree's [nodes]."""
        self.prefix_keys, self.prefix_values = prefix_keys, prefix_values
        self.chains = find_chains(subtree_end)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """From query [1, heads, nodes, size] and key, value [1, kv_heads, nodes, size] to query's shape."""
        prefix_key = self.prefix_keys[layer][0] if self.prefix_keys else None
        prefix_value = self.prefix_values[layer][0] if self.prefix_values else None
        grouped = query[0].unflatten(0, (key.shape[1], -1))  # [kv_heads, group, nodes, size]
        attended = _BlockedAttention.apply(grouped, key[0], value[0], prefix_key, prefix_value, self.chains, scaling)
        return attended.flatten(0, 1)[None]


def find_chains(subtree_end: Tensor) -> list[Chain]:
    """The chains of a tree in depth-first order, given its `subtree_end` [nodes].

    A node is the only child of the one before it if and only if both subtrees end at the same node.
    """
    ends, counts = subtree_end.unique_consecutive(return_counts=True)
    stops = counts.cumsum(dim=0)
    return [
        Chain(stop - count, stop, end + 1)
        for end, count, stop in zip(ends.tolist(), counts.tolist(), stops.tolist(), strict=True)
    ]


class _BlockedAttention(torch.autograd.Function):
    """The blocks of TreeAttention; shapes as in block_attention.py, prefix keys and values [kv_heads, prefix, size]."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        prefix_key: Tensor | None,
        prefix_value: Tensor | None,
        chains: list[Chain],
        scaling: float,
    ) -> Tensor:
        """Attends in blocks and merges them; several blocks are summed in float32."""
        kv_heads, group, nodes, size = query.shape
        # [nodes, heads, size] in memory, as the output projection reads it.
        summed = query.new_empty((nodes, kv_heads, group, size), dtype=torch.float32).permute(1, 2, 0, 3)
        lse = query.new_empty((kv_heads, group, nodes), dtype=torch.float32)
        for chain in chains:
            own = chain.nodes
            summed[:, :, own], lse[:, :, own] = attend_block(
                query[:, :, own], key[:, own], value[:, own], True, scaling
            )
        for chain in chains:
            if chain.end < chain.last:
                below = chain.descendants
                seen = attend_block(query[:, :, below], key[:, chain.nodes], value[:, chain.nodes], False, scaling)
                merge_(summed[:, :, below], lse[:, :, below], *seen)
        if prefix_key is not None and prefix_value is not None:
            merge_(summed, lse, *attend_block(query, prefix_key, prefix_value, False, scaling))
        out = summed.to(query.dtype)
        ctx.save_for_backward(query, key, value, prefix_key, prefix_value, out, lse)
        ctx.chains, ctx.scaling = chains, scaling
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Sums the gradients of all blocks in float32."""
        query, key, value, prefix_key, prefix_value, out, lse = ctx.saved_tensors
        scaling, gradient = ctx.scaling, gradients[0]
        by_query = torch.empty_like(query, dtype=torch.float32)
        by_key, by_value = torch.empty_like(key, dtype=torch.float32), torch.empty_like(value, dtype=torch.float32)

        def block(queries: slice, keys: Tensor, values: Tensor, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
            of = (..., queries, slice(None))
            return attend_block_backward(
                gradient[of], query[of], keys, values, out[of], lse[..., queries], causal, scaling
            )

        for chain in ctx.chains:
            own = chain.nodes
            by_query[:, :, own], by_key[:, own], by_value[:, own] = block(own, key[:, own], value[:, own], True)
        for chain in ctx.chains:
            if chain.end < chain.last:
                own, below = chain.nodes, chain.descendants
                of_query, of_key, of_value = block(below, key[:, own], value[:, own], False)
                by_query[:, :, below] += of_query
                by_key[:, own] += of_key
                by_value[:, own] += of_value
        by_prefix_key = by_prefix_value = None
        if prefix_key is not None:
            of_query, by_prefix_key, by_prefix_value = block(slice(None), prefix_key, prefix_value, False)
            by_query += of_query
        own_gradients = (each.to(query.dtype) for each in (by_query, by_key, by_value))
        return *own_gradients, by_prefix_key, by_prefix_value, None, None
