"""The KV cache: keys and values of many sequences, one slot each, and of prompts that several slots share.

For each layer there are two tensors, keys and values, of shape [slots, kv_heads, capacity, head_size], once for the
slots and once for shared prompts:

        shared   <---- capacity ---->             slots    <--- capacity --->
        prompt 0 | k  k  k  k  .  . |             slot 0   | k  k  .  .  . |    ids[0] = [8, 3, 9, 9, 2, 5]   prompt 0
        prompt 1 | k  k  k  k  k  . |             slot 1   | k  .  .  .  . |    ids[1] = [8, 3, 9, 9, 4]      prompt 0
                                                  slot 2   | k  k  k  .  . |    ids[2] = [7, 1, 2]            none
                                                  slot 3   | .  .  .  .  . |    ids[3] = []                   none

Invariants:
- The ids of a slot begin with those of its shared prompt, if it has one. Place p of the slot belongs to
  `ids[slot][shared_length(slot) + p]`, given all ids before it and the engine's shared prefix; what lies behind
  `own_length(slot)` is never read before it is written.
- `own_length(slot) <= capacity`, which is a multiple of CAPACITY_STEP and the same for all slots.
- A shared prompt is never written again while a slot has it.

An entry is freed in three ways: `copy` and the engine's next pass overwrite it once its slot was given to another
sequence, `clear` forgets it when other weights or another shared prefix make it worthless, and `shrink` gives its
memory back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

CAPACITY_STEP = 128
"""Capacity grows by so many tokens at a time, so that a growing sequence is rarely copied."""


class KVTensors:
    """Keys and values by layer [rows, kv_heads, capacity, head_size]."""

    def __init__(self, layers: int, kv_heads: int, head_size: int, dtype: torch.dtype, device: torch.device) -> None:
        empty = torch.zeros(0, kv_heads, 0, head_size, dtype=dtype, device=device)
        self.keys: list[Tensor] = [empty] * layers
        self.values: list[Tensor] = [empty] * layers

    @property
    def rows(self) -> int:
        """How many sequences there is room for."""
        return self.keys[0].shape[0]

    @property
    def capacity(self) -> int:
        """How many tokens a row can hold now."""
        return self.keys[0].shape[2]

    def grow(self, rows: int, tokens: int) -> None:
        """Grows to at least so many rows of at least so many tokens."""
        more_rows, more_tokens = max(rows - self.rows, 0), max(rounded_capacity(tokens) - self.capacity, 0)
        if more_rows or more_tokens:
            for tensors in (self.keys, self.values):
                for layer, old in enumerate(tensors):
                    tensors[layer] = torch.nn.functional.pad(old, (0, 0, 0, more_tokens, 0, 0, 0, more_rows))

    def shrink(self, rows: int, tokens: int) -> None:
        """Frees all but the first rows, and the capacity beyond so many tokens."""
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                tensors[layer] = old[:rows, :, : rounded_capacity(tokens)].clone()

    def copy(self, other: KVTensors, source: int, target: int, length: int) -> None:
        """Copies the first tokens of a row of other tensors, or of these."""
        if not length:
            return
        for mine, theirs in ((self.keys, other.keys), (self.values, other.values)):
            for into, read in zip(mine, theirs, strict=True):
                into[target, :, :length] = read[source, :, :length]

    def swap(self, one: int, other: int, length: int) -> None:
        """Exchanges the first tokens of two rows."""
        for tensor in (*self.keys, *self.values):
            held = tensor[one, :, :length].clone()
            tensor[one, :, :length] = tensor[other, :, :length]
            tensor[other, :, :length] = held


class KVCache:
    """Keys and values by slot, the ids that each slot holds them of, and the prompts that slots share."""

    def __init__(self, layers: int, kv_heads: int, head_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.own = KVTensors(layers, kv_heads, head_size, dtype, device)
        self.shared = KVTensors(layers, kv_heads, head_size, dtype, device)
        self.ids: list[list[int]] = []
        self.prompts: list[int | None] = []
        """By slot, the row of its shared prompt in `shared`."""
        self.prompt_lengths: list[int] = []
        """By row of `shared`, the length of the prompt."""
        self.bytes_per_token = 2 * layers * kv_heads * head_size * dtype.itemsize

    @property
    def capacity(self) -> int:
        """How many tokens of its own a slot can hold now."""
        return self.own.capacity

    @property
    def shared_tokens(self) -> int:
        """The tokens that memory is reserved for beside the slots."""
        return self.shared.rows * self.shared.capacity

    def shared_length(self, slot: int) -> int:
        """The length of a slot's shared prompt."""
        prompt = self.prompts[slot]
        return 0 if prompt is None else self.prompt_lengths[prompt]

    def own_length(self, slot: int) -> int:
        """How many tokens a slot holds behind its shared prompt."""
        return len(self.ids[slot]) - self.shared_length(slot)

    def reserve(self, slots: int, tokens: int) -> None:
        """Grows to at least so many slots of at least so many tokens of their own."""
        self.own.grow(slots, tokens)
        new = self.own.rows - len(self.ids)
        self.ids += [[] for _ in range(new)]
        self.prompts += [None] * new

    def shrink(self, slots: int, tokens: int) -> None:
        """Frees all but the first slots, and the capacity beyond so many tokens; a slot that needs more is emptied."""
        for slot in range(slots, len(self.ids)):
            self.empty(slot)
        for slot in range(min(slots, len(self.ids))):
            if self.own_length(slot) > rounded_capacity(tokens):
                self.empty(slot)
        del self.ids[slots:], self.prompts[slots:]
        self.own.shrink(slots, tokens)
        used = max((prompt + 1 for prompt in self.prompts if prompt is not None), default=0)
        del self.prompt_lengths[used:]
        self.shared.shrink(used, max(self.prompt_lengths, default=0))

    def swap(self, one: int, other: int) -> None:
        """Exchanges two slots."""
        if one == other:
            return
        self.own.swap(one, other, max(self.own_length(one), self.own_length(other)))
        self.ids[one], self.ids[other] = self.ids[other], self.ids[one]
        self.prompts[one], self.prompts[other] = self.prompts[other], self.prompts[one]

    def copy(self, source: int, target: int, length: int) -> None:
        """Gives a slot the first tokens of another one, and nothing else; a shared prompt is not copied."""
        prompt, shared = self.prompts[source], self.shared_length(source)
        if prompt is not None and length < shared:
            self.own.copy(self.shared, prompt, target, length)
            self.prompts[target] = None
        else:
            self.own.copy(self.own, source, target, length - shared)
            self.prompts[target] = prompt
        self.ids[target] = self.ids[source][:length]

    def tokens_after_sharing(self, slots: Sequence[int]) -> int:
        """The tokens that memory would be reserved for if these slots became shared prompts."""
        rows = max(self.shared.rows, *(row + 1 for row in self._free_prompts(len(slots))))
        capacity = max(self.shared.capacity, *(rounded_capacity(len(self.ids[slot])) for slot in slots))
        return self.own.rows * self.own.capacity + rows * capacity

    def share(self, slots: Sequence[int]) -> None:
        """Makes all tokens of each of these slots a shared prompt, so that copies of the slot take no memory."""
        free = self._free_prompts(len(slots))
        self.shared.grow(free[-1] + 1, max(len(self.ids[slot]) for slot in slots))
        for slot, prompt in zip(slots, free, strict=True):
            length = len(self.ids[slot])
            self.prompt_lengths[prompt : prompt + 1] = [length]
            self.shared.copy(self.own, slot, prompt, length)
            self.prompts[slot] = prompt

    def trim(self) -> None:
        """Frees the capacity that no slot needs, because what it held is a shared prompt now."""
        longest = 1 + max(self.own_length(slot) for slot in range(len(self.ids)))
        if rounded_capacity(longest) < self.capacity:
            self.own.shrink(self.own.rows, longest)

    def _free_prompts(self, count: int) -> list[int]:
        """The first rows of `shared` that no slot has, in order."""
        used = set(self.prompts)
        return [row for row in range(len(self.prompt_lengths) + count) if row not in used][:count]

    def empty(self, slot: int) -> None:
        """Forgets what a slot holds."""
        self.ids[slot], self.prompts[slot] = [], None

    def clear(self) -> None:
        """Empties every slot; the memory stays reserved."""
        for slot in range(len(self.ids)):
            self.empty(slot)


def rounded_capacity(tokens: int) -> int:
    """The capacity that is reserved for so many tokens."""
    return -(-tokens // CAPACITY_STEP) * CAPACITY_STEP
