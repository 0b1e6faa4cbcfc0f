"""Packing: episodes of one problem become one row, its stem once and each episode's own tokens after it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

STEM = 0
PADDING = -1


@dataclass(frozen=True)
class Packing:
    """Packed rows, and where in them each token of the batch stands."""

    tokens: Tensor
    """[rows, width] ids."""
    positions: Tensor
    """[rows, width] place of each token in its own conversation."""
    branches: Tensor
    """[rows, width] 0 on the stem, 1, 2, … on the episodes that grow from it, -1 on padding."""
    places: Tensor
    """[episodes, length] index of each token into the flattened packed rows; -1 where there is none."""

    def visible(self, trunk: int) -> Tensor:
        """[rows, width, trunk + width] what each token may look at: the trunk, its stem and its own branch's past."""
        width = self.tokens.shape[1]
        other, own = self.branches[:, None, :], self.branches[:, :, None]
        related = (other == STEM) | (other == own)
        order = torch.arange(width, device=self.tokens.device)
        within = related & (order[None, :] <= order[:, None])
        return torch.cat([within.new_ones(len(within), width, trunk), within], dim=2)


def pack(tokens: Tensor, mask: Tensor, lengths: Tensor, start: int) -> Packing:
    """Packs right-padded episodes [episodes, length] from column `start` on; neighbours that begin alike share a stem.

    A stem ends one token before the first chosen one, because that token's hidden state predicts it.
    """
    rows = [row[:length] for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]
    first_chosen = torch.where(mask.any(dim=1), mask.long().argmax(dim=1), lengths).tolist()
    stems = [row[start : max(first - 1, start)] for row, first in zip(rows, first_chosen, strict=True)]
    families = [list(family) for _, family in itertools.groupby(range(len(rows)), key=stems.__getitem__)]
    widths = [
        sum(len(rows[i]) - start for i in family) - (len(family) - 1) * len(stems[family[0]]) for family in families
    ]
    packed = torch.zeros(len(families), max(widths), dtype=torch.long)
    positions, branches = torch.zeros_like(packed), torch.full_like(packed, PADDING)
    places = torch.full(tokens.shape, -1, dtype=torch.long)
    for line, family in enumerate(families):
        stem = stems[family[0]]
        base = start + len(stem)
        packed[line, : len(stem)] = torch.tensor(stem, dtype=torch.long)
        positions[line, : len(stem)] = torch.arange(start, base)
        branches[line, : len(stem)] = STEM
        at = len(stem)
        for branch, index in enumerate(family, start=1):
            end = at + len(rows[index]) - base
            packed[line, at:end] = torch.tensor(rows[index][base:], dtype=torch.long)
            positions[line, at:end] = torch.arange(base, len(rows[index]))
            branches[line, at:end] = branch
            places[index, start:base] = line * packed.shape[1] + torch.arange(len(stem))
            places[index, base : len(rows[index])] = line * packed.shape[1] + torch.arange(at, end)
            at = end
    device = tokens.device
    return Packing(packed.to(device), positions.to(device), branches.to(device), places.to(device))
