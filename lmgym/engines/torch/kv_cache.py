"""Keys and values of many live sequences, in slots that are kept in front while they decode."""

from __future__ import annotations

import torch
from torch import Tensor

ROOM_STEP = 128
"""Room is added in blocks of so many tokens, so that a growing sequence rarely moves."""


class KeyValueStore:
    """For each layer two tensors [slots, kv_heads, room, size], and for each slot the ids whose keys it holds."""

    def __init__(self, layers: int, kv_heads: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
        empty = torch.zeros(0, kv_heads, 0, size, dtype=dtype, device=device)
        self.keys = [empty] * layers
        self.values = [empty] * layers
        self.ids: list[list[int]] = []
        self.bytes_per_token = 2 * layers * kv_heads * size * dtype.itemsize

    @property
    def room(self) -> int:
        """How many tokens a slot can hold now."""
        return self.keys[0].shape[2]

    def make_room(self, slots: int, tokens: int) -> None:
        """Grows to at least so many slots of at least so many tokens."""
        if slots <= len(self.ids) and tokens <= self.room:
            return
        slots = max(len(self.ids), slots)
        room = max(self.room, rounded_room(tokens))
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                growth = (0, 0, 0, room - old.shape[2], 0, 0, 0, slots - len(old))
                tensors[layer] = torch.nn.functional.pad(old, growth)
        self.ids += [[] for _ in range(slots - len(self.ids))]

    def shrink(self, slots: int, tokens: int) -> None:
        """Gives back all but the first slots, and the room beyond so many tokens."""
        room = rounded_room(tokens)
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                tensors[layer] = old[:slots, :, :room].clone()
        self.ids = [ids if len(ids) <= room else [] for ids in self.ids[:slots]]

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
        """Gives a slot the first tokens that another holds, and nothing else."""
        for tensor in (*self.keys, *self.values):
            tensor[target, :, :length] = tensor[source, :, :length]
        self.ids[target] = self.ids[source][:length]

    def clear(self) -> None:
        """Forgets everything, as a new policy version must."""
        self.ids = [[] for _ in self.ids]


def rounded_room(tokens: int) -> int:
    """The room that is made for so many tokens."""
    return -(-tokens // ROOM_STEP) * ROOM_STEP


class StoreReader:
    """Attention of new tokens over the trunk, over what their slot holds, and over themselves; writes as it goes."""

    def __init__(
        self,
        store: KeyValueStore,
        slots: Tensor | None,
        starts: Tensor,
        ends: Tensor,
        tokens: int,
        trunk: tuple[list[Tensor], list[Tensor]] | None,
    ) -> None:
        """`slots` names the rows' slots, None where they are the first ones; a row writes from its start to its end.

        Padding is written at the end, where the row's next token will overwrite it before it is ever read.
        """
        self.store, self.slots, self.trunk = store, slots, trunk
        rows = len(starts)
        self.rows = torch.arange(rows, device=starts.device) if slots is None else slots
        places = starts[:, None] + torch.arange(tokens, device=starts.device)
        self.places = torch.minimum(places, ends[:, None])
        self.reach = int(self.places.max()) + 1
        columns = torch.arange(self.reach, device=starts.device)
        hidden = columns[None, None, :] > self.places[:, :, None]
        # One mask for all heads of a group: [rows, 1, 1, tokens, reach]
        self.mask = torch.zeros(hidden.shape, device=starts.device).masked_fill_(hidden, float("-inf"))[:, None, None]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Exact softmax over both parts: the trunk's scores are one matrix product for all rows together."""
        keys, values = self.store.keys[layer], self.store.values[layer]
        keys[self.rows[:, None], :, self.places] = key.transpose(1, 2)
        values[self.rows[:, None], :, self.places] = value.transpose(1, 2)
        own = slice(len(query)) if self.slots is None else self.slots
        own_keys, own_values = keys[own, :, : self.reach], values[own, :, : self.reach]
        rows, heads, tokens, size = query.shape
        kv_heads = key.shape[1]
        grouped = (query * scaling).reshape(rows, kv_heads, heads // kv_heads * tokens, size)
        scores = (grouped @ own_keys.transpose(2, 3)).float()
        scores.view(rows, kv_heads, -1, tokens, self.reach).add_(self.mask)
        top = scores.amax(dim=-1, keepdim=True)
        if self.trunk is None:
            weights = scores.sub_(top).exp_()
            mixed = (weights.to(value.dtype) @ own_values).float() / weights.sum(dim=-1, keepdim=True)
        else:
            flat = grouped.transpose(0, 1).reshape(kv_heads, -1, size)
            trunk_scores = (flat @ self.trunk[0][layer][0].transpose(1, 2)).float()
            trunk_scores = trunk_scores.view(kv_heads, rows, -1, trunk_scores.shape[-1])
            top = torch.maximum(top, trunk_scores.amax(dim=-1, keepdim=True).transpose(0, 1))
            weights = scores.sub_(top).exp_()
            trunk_weights = trunk_scores.sub_(top.transpose(0, 1)).exp_()
            total = weights.sum(dim=-1, keepdim=True) + trunk_weights.sum(dim=-1, keepdim=True).transpose(0, 1)
            from_trunk = (
                trunk_weights.to(value.dtype).view(kv_heads, -1, trunk_weights.shape[-1]) @ self.trunk[1][layer][0]
            )
            mixed = (weights.to(value.dtype) @ own_values).float()
            mixed = mixed.add_(from_trunk.view(kv_heads, rows, -1, size).transpose(0, 1)).div_(total)
        return mixed.view(rows, heads, tokens, size).to(value.dtype)
