"""The KV cache: keys and values of many sequences, one slot each.

For each layer there are two tensors, keys and values, of shape [slots, kv_heads, capacity, head_size]:

                 <------------- capacity ------------->
        slot 0   | k  k  k  k  k  .  .  .  .  .  .  . |    ids[0] = [8, 3, 9, 9, 2]
        slot 1   | k  k  .  .  .  .  .  .  .  .  .  . |    ids[1] = [8, 3]
        slot 2   | .  .  .  .  .  .  .  .  .  .  .  . |    ids[2] = []

Invariants:
- `keys[layer][slot, :, place]` belongs to `ids[slot][place]`, given all ids before it and the engine's shared prefix;
  what lies behind `len(ids[slot])` is never read before it is written.
- `len(ids[slot]) <= capacity`, which is a multiple of CAPACITY_STEP and the same for all slots.

An entry is freed in three ways: `copy` and the engine's next pass overwrite it once its slot was given to another
sequence, `clear` forgets it when other weights or another shared prefix make it worthless, and `shrink` gives its
memory back.
"""

from __future__ import annotations

import torch
from torch import Tensor

CAPACITY_STEP = 128
"""Capacity grows by so many tokens at a time, so that a growing sequence is rarely copied."""


class KVCache:
    """Keys and values by layer and slot, and the ids that each slot holds them of."""

    def __init__(self, layers: int, kv_heads: int, head_size: int, dtype: torch.dtype, device: torch.device) -> None:
        empty = torch.zeros(0, kv_heads, 0, head_size, dtype=dtype, device=device)
        self.keys: list[Tensor] = [empty] * layers
        self.values: list[Tensor] = [empty] * layers
        self.ids: list[list[int]] = []
        self.bytes_per_token = 2 * layers * kv_heads * head_size * dtype.itemsize

    @property
    def capacity(self) -> int:
        """How many tokens a slot can hold now."""
        return self.keys[0].shape[2]

    def reserve(self, slots: int, tokens: int) -> None:
        """Grows to at least so many slots of at least so many tokens."""
        if slots <= len(self.ids) and tokens <= self.capacity:
            return
        slots = max(len(self.ids), slots)
        capacity = max(self.capacity, rounded_capacity(tokens))
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                growth = (0, 0, 0, capacity - old.shape[2], 0, 0, 0, slots - len(old))
                tensors[layer] = torch.nn.functional.pad(old, growth)
        self.ids += [[] for _ in range(slots - len(self.ids))]

    def shrink(self, slots: int, tokens: int) -> None:
        """Frees all but the first slots, and the capacity beyond so many tokens; a slot that needs more is emptied."""
        capacity = rounded_capacity(tokens)
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                tensors[layer] = old[:slots, :, :capacity].clone()
        self.ids = [ids if len(ids) <= capacity else [] for ids in self.ids[:slots]]

    def swap(self, one: int, other: int) -> None:
        """Exchanges two slots."""
        if one == other:
            return
        length = max(len(self.ids[one]), len(self.ids[other]))
        for tensor in (*self.keys, *self.values):
            held = tensor[one, :, :length].clone()
            tensor[one, :, :length] = tensor[other, :, :length]
            tensor[other, :, :length] = held
        self.ids[one], self.ids[other] = self.ids[other], self.ids[one]

    def copy(self, source: int, target: int, length: int) -> None:
        """Gives a slot the first tokens of another one, and nothing else."""
        for tensor in (*self.keys, *self.values):
            tensor[target, :, :length] = tensor[source, :, :length]
        self.ids[target] = self.ids[source][:length]

    def clear(self) -> None:
        """Empties every slot; the memory stays reserved."""
        self.ids = [[] for _ in self.ids]


def rounded_capacity(tokens: int) -> int:
    """The capacity that is reserved for so many tokens."""
    return -(-tokens // CAPACITY_STEP) * CAPACITY_STEP
