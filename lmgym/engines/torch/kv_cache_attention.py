"""Attention of one forward pass over the KV cache, which it writes as it goes."""

from __future__ import annotations

import torch
from torch import Tensor

from lmgym.engines.torch.kv_cache import KVCache


class KVCacheAttention:
    """Attention of new tokens over the shared prefix, over what their slot holds, and over themselves.

    A row attends to two sets of keys: those of the shared prefix, which all rows have in common and which are stored
    once, and those of its own slot, where the keys of its new tokens are written first:

            shared prefix                 slot of the row
            | s  s  s  s  s  s |          | k  k  k  n  n  .  . |
              one matrix product            ^starts  ^ends
              for all rows together         k: cached   n: new in this pass   `.`: masked

    The softmax runs over both sets at once: both scores are shifted by the larger of their maxima, and the two weighted
    sums of values are divided by the sum of all weights, so the result is exact.
    """

    def __init__(
        self,
        cache: KVCache,
        slots: Tensor | None,
        starts: Tensor,
        ends: Tensor,
        tokens: int,
        shared_prefix: tuple[list[Tensor], list[Tensor]] | None,
    ) -> None:
        """`slots` [rows] are the rows' slots, None for the first ones; a row writes from `starts` to `ends` [rows].

        A row with fewer than `tokens` new tokens is padded. The keys of padding are written at `ends`, where the key of
        the row's next token overwrites them before they are read. The shared prefix has keys and values
        [1, kv_heads, prefix, size] by layer.
        """
        self.cache, self.slots, self.shared_prefix = cache, slots, shared_prefix
        device = starts.device
        self.rows = torch.arange(len(starts), device=device) if slots is None else slots  # [rows]
        places = starts[:, None] + torch.arange(tokens, device=device)
        self.places = torch.minimum(places, ends[:, None])  # [rows, tokens]
        self.reach = int(self.places.max()) + 1
        columns = torch.arange(self.reach, device=device)
        hidden = columns[None, None, :] > self.places[:, :, None]  # [rows, tokens, reach]
        # One mask for all heads of a group: [rows, 1, 1, tokens, reach]
        self.mask = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, float("-inf"))[:, None, None]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """From query [rows, heads, tokens, size] and key, value [rows, kv_heads, tokens, size] to query's shape."""
        own_keys, own_values = self._write(layer, key, value)  # [rows, kv_heads, reach, size]
        rows, heads, tokens, size = query.shape
        kv_heads = key.shape[1]
        # The heads that share a key head are queries of it: [rows, kv_heads, group · tokens, size]
        grouped = (query * scaling).reshape(rows, kv_heads, heads // kv_heads * tokens, size)
        scores = (grouped @ own_keys.transpose(2, 3)).float()  # [rows, kv_heads, group · tokens, reach]
        scores.view(rows, kv_heads, -1, tokens, self.reach).add_(self.mask)
        top = scores.amax(dim=-1, keepdim=True)  # [rows, kv_heads, group · tokens, 1]
        if self.shared_prefix is None:
            weights = scores.sub_(top).exp_()
            mixed = (weights.to(value.dtype) @ own_values).float() / weights.sum(dim=-1, keepdim=True)
        else:
            prefix_keys, prefix_values = self.shared_prefix[0][layer][0], self.shared_prefix[1][layer][0]
            flat = grouped.transpose(0, 1).reshape(kv_heads, -1, size)  # [kv_heads, rows · group · tokens, size]
            prefix_scores = (flat @ prefix_keys.transpose(1, 2)).float()
            prefix_scores = prefix_scores.view(kv_heads, rows, -1, prefix_scores.shape[-1])
            top = torch.maximum(top, prefix_scores.amax(dim=-1, keepdim=True).transpose(0, 1))
            weights = scores.sub_(top).exp_()
            prefix_weights = prefix_scores.sub_(top.transpose(0, 1)).exp_()  # [kv_heads, rows, group · tokens, prefix]
            total = weights.sum(dim=-1, keepdim=True) + prefix_weights.sum(dim=-1, keepdim=True).transpose(0, 1)
            from_prefix = prefix_weights.to(value.dtype).view(kv_heads, -1, prefix_weights.shape[-1]) @ prefix_values
            mixed = (weights.to(value.dtype) @ own_values).float()  # [rows, kv_heads, group · tokens, size]
            mixed = mixed.add_(from_prefix.view(kv_heads, rows, -1, size).transpose(0, 1)).div_(total)
        return mixed.view(rows, heads, tokens, size).to(value.dtype)

    def _write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Writes the new keys and values, and gives all that the rows' slots hold up to `reach`."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys[self.rows[:, None], :, self.places] = key.transpose(1, 2)
        values[self.rows[:, None], :, self.places] = value.transpose(1, 2)
        own = slice(len(key)) if self.slots is None else self.slots  # the first slots are read without a copy
        return keys[own, :, : self.reach], values[own, :, : self.reach]
