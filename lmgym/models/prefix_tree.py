"""The prefix tree of a micro-batch: a prefix that several episodes share is stored, and computed, once.

Three episodes of which the first `start` = 1 tokens are the shared prefix of the batch, and the tree of what follows
(a node is written as index:token):

    episodes            tree
    1 | 2 3 5 6 7       0:2 ─ 1:3 ─┬─ 2:5 ─┬─ 3:6 ─ 4:7
    1 | 2 3 5 8                    │       └─ 5:8
    1 | 2 3 9                      └─ 6:9

    node           0  1  2  3  4  5  6
    tokens         2  3  5  6  7  8  9      [nodes]
    positions      1  2  3  4  5  4  3      [nodes]
    subtree_end    6  6  5  4  4  5  6      [nodes]

    node_of       -1  0  1  2  3  4         [episodes, length]
                  -1  0  1  2  5 -1
                  -1  0  1  6 -1 -1

Invariants:

1. Nodes are in depth-first pre-order: parents come before children, and the subtree of node i is the index range
   i … subtree_end[i].
2. Therefore node i is an ancestor of node j, or j itself, if and only if i ≤ j ≤ subtree_end[i]. This is the full
   attention mask: no [nodes, nodes] matrix is stored.
3. tokens[node_of[e, t]] is token t of episode e, and positions[node_of[e, t]] is t, for start ≤ t < lengths[e].
4. Only consecutive episodes share nodes. In lexicographic order every distinct prefix has exactly one node; in any
   other order some are computed more than once, but the result is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PrefixTree:
    """The tokens of a micro-batch as a tree (or a forest, if the first tokens differ), in depth-first pre-order."""

    tokens: Tensor
    """[nodes] token ids."""
    positions: Tensor
    """[nodes] position of the token in its episodes."""
    subtree_end: Tensor
    """[nodes] index of the last node in the subtree: i is j or an ancestor of j if i ≤ j ≤ subtree_end[i]."""
    node_of: Tensor
    """[episodes, length] node of each token; -1 in the shared prefix and in the padding."""


def build_prefix_tree(tokens: Tensor, lengths: Tensor, start: int) -> PrefixTree:
    """Builds the tree of columns `start` and up of right-padded episodes [episodes, length]."""
    suffixes = [row[start:length] for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]
    shared = [0, *shared_with_previous(tokens, lengths)[1:].sub(start).clamp(min=0).tolist()]
    node_tokens: list[int] = []
    depths: list[int] = []
    path: list[int] = []  # nodes of the current episode, from its root to its last token
    node_of = torch.full(tokens.shape, -1, dtype=torch.long)
    for episode, (suffix, common) in enumerate(zip(suffixes, shared, strict=True)):
        path = [*path[:common], *range(len(node_tokens), len(node_tokens) + len(suffix) - common)]
        node_tokens += suffix[common:]
        depths += range(common, len(suffix))
        node_of[episode, start : start + len(suffix)] = torch.tensor(path, dtype=torch.long)
    device = tokens.device
    return PrefixTree(
        tokens=torch.tensor(node_tokens, device=device),
        positions=torch.tensor(depths, device=device) + start,
        subtree_end=_subtree_ends(depths).to(device),
        node_of=node_of.to(device),
    )


def shared_with_previous(tokens: Tensor, lengths: Tensor) -> Tensor:
    """[episodes] length of the prefix that each episode shares with the previous one; 0 for the first."""
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    in_both = columns < torch.minimum(lengths[1:], lengths[:-1])[:, None]  # [episodes - 1, length]
    equal = (tokens[1:] == tokens[:-1]) & in_both
    return torch.cat([lengths.new_zeros(1), equal.long().cumprod(dim=1).sum(dim=1)])


def _subtree_ends(depths: list[int]) -> Tensor:
    """[nodes] last node of each subtree: the one before the next node that is not deeper than the subtree's root."""
    ends = [0] * len(depths)
    open_nodes: list[int] = []  # the path from the root to the current node
    for node, depth in enumerate(depths):
        while open_nodes and depths[open_nodes[-1]] >= depth:
            ends[open_nodes.pop()] = node - 1
        open_nodes.append(node)
    for node in open_nodes:
        ends[node] = len(depths) - 1
    return torch.tensor(ends)
