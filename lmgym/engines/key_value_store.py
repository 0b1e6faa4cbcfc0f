"""Keys and values of many live sequences, in slots that are kept in front while they decode."""

from __future__ import annotations

import torch
from torch import Tensor

GROWTH = 128
"""Room is added in blocks of this many tokens, so that a growing sequence rarely moves."""


class KeyValueStore:
    """For each layer two tensors [slots, kv_heads, room, size], and for each slot the ids whose keys it holds."""

    def __init__(self, layers: int, kv_heads: int, size: int, slots: int, dtype: torch.dtype, device: torch.device):
        self.shape = (slots, kv_heads, 0, size)
        self.keys = [torch.zeros(self.shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros(self.shape, dtype=dtype, device=device) for _ in range(layers)]
        self.ids: list[list[int]] = [[] for _ in range(slots)]

    @property
    def room(self) -> int:
        """How many tokens a slot can hold now."""
        return self.keys[0].shape[2]

    def make_room(self, tokens: int) -> None:
        """Grows every slot to hold at least so many tokens."""
        if tokens <= self.room:
            return
        extra = -(-tokens // GROWTH) * GROWTH - self.room
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                tensors[layer] = torch.nn.functional.pad(old, (0, 0, 0, extra))

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

    def copy(self, source: int, target: int) -> None:
        """Gives one slot what another holds."""
        length = len(self.ids[source])
        for tensor in (*self.keys, *self.values):
            tensor[target, :, :length] = tensor[source, :, :length]
        self.ids[target] = list(self.ids[source])

    def clear(self) -> None:
        """Forgets everything, as a new policy version must."""
        self.ids = [[] for _ in self.ids]


class StoreReader:
    """Attention of new tokens over the trunk, over what their slot holds, and over themselves; writes as it goes."""

    def __init__(
        self,
        store: KeyValueStore,
        slots: Tensor | None,
        starts: Tensor,
        tokens: int,
        trunk: tuple[list[Tensor], list[Tensor]] | None,
    ) -> None:
        """`slots` names the rows' slots, None where they are the first ones; `starts` is where each row writes."""
        self.store, self.slots, self.trunk = store, slots, trunk
        rows = len(starts)
        self.rows = torch.arange(rows, device=starts.device) if slots is None else slots
        self.places = starts[:, None] + torch.arange(tokens, device=starts.device)
        self.reach = int(starts.max()) + tokens
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
        scores = (scores.view(rows, kv_heads, -1, tokens, self.reach) + self.mask).view(scores.shape)
        top = scores.amax(dim=-1, keepdim=True)
        if self.trunk is None:
            weights = (scores - top).exp_()
            mixed = (weights.to(value.dtype) @ own_values).float() / weights.sum(dim=-1, keepdim=True)
        else:
            flat = grouped.transpose(0, 1).reshape(kv_heads, -1, size)
            trunk_scores = (flat @ self.trunk[0][layer][0].transpose(1, 2)).float()
            trunk_scores = trunk_scores.view(kv_heads, rows, -1, trunk_scores.shape[-1])
            top = torch.maximum(top, trunk_scores.amax(dim=-1, keepdim=True).transpose(0, 1))
            weights = (scores - top).exp_()
            trunk_weights = (trunk_scores - top.transpose(0, 1)).exp_()
            total = weights.sum(dim=-1, keepdim=True) + trunk_weights.sum(dim=-1, keepdim=True).transpose(0, 1)
            from_trunk = (
                trunk_weights.to(value.dtype).view(kv_heads, -1, trunk_weights.shape[-1]) @ self.trunk[1][layer][0]
            )
            mixed = (weights.to(value.dtype) @ own_values).float() + from_trunk.view(
                kv_heads, rows, -1, size
            ).transpose(0, 1)
            mixed = mixed / total
        return mixed.view(rows, heads, tokens, size).to(value.dtype)
