"""Packing: episodes become one prefix tree, in which what they begin with alike stands once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """The nodes of the tree, parents before children and each subtree in one piece, and where the episodes run."""

    tokens: Tensor
    """[nodes] ids."""
    positions: Tensor
    """[nodes] place of each in its conversation."""
    ends: Tensor
    """[nodes] the last node of each one's subtree: node i stands before node j in an episode if i ≤ j ≤ ends[i]."""
    places: Tensor
    """[episodes, length] the node of each token; -1 where there is none."""


def pack(tokens: Tensor, lengths: Tensor, start: int) -> Packing:
    """Packs right-padded episodes [episodes, length] from column `start` on; neighbours share what they begin with."""
    rows = [row[start:length] for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]
    shared = [0, *shared_with_previous(tokens, lengths)[1:].sub(start).clamp(min=0).tolist()]
    nodes: list[int] = []
    depths: list[int] = []
    path: list[int] = []
    places = torch.full(tokens.shape, -1, dtype=torch.long)
    for index, (row, common) in enumerate(zip(rows, shared, strict=True)):
        path = [*path[:common], *range(len(nodes), len(nodes) + len(row) - common)]
        nodes += row[common:]
        depths += range(common, len(row))
        places[index, start : start + len(row)] = torch.tensor(path, dtype=torch.long)
    device = tokens.device
    positions = torch.tensor(depths, device=device) + start
    return Packing(torch.tensor(nodes, device=device), positions, _ends(depths).to(device), places.to(device))


def shared_with_previous(tokens: Tensor, lengths: Tensor) -> Tensor:
    """[episodes] how many tokens each episode begins with as the one before it does; 0 for the first."""
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    both = columns < torch.minimum(lengths[1:], lengths[:-1])[:, None]
    same = (tokens[1:] == tokens[:-1]) & both
    return torch.cat([lengths.new_zeros(1), same.long().cumprod(dim=1).sum(dim=1)])


def _ends(depths: list[int]) -> Tensor:
    """A subtree ends before the next node that is no deeper than its root."""
    ends = [0] * len(depths)
    above: list[int] = []
    for node, depth in enumerate(depths):
        while above and depths[above[-1]] >= depth:
            ends[above.pop()] = node - 1
        above.append(node)
    for node in above:
        ends[node] = len(depths) - 1
    return torch.tensor(ends)
