"""Attention of one forward pass over the KV cache, which it writes as it goes: of new prompts, or of one token per row.

A row attends to up to three sets of keys, which are attended to apart and merged exactly (block_attention.py):

        shared prefix            shared prompt            slot of the row
        | s  s  s  s  s |        | p  p  p  p |           | k  k  k  n  n  .  . |
        of all rows              of the rows of           k: cached   n: new in this pass   `.`: not there yet
                                 a group
        one product for          one for each prompt      one for each row
        all rows

So the keys that rows have in common are read once, not once per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmgym.engines.torch.kv_cache import KVCache
from lmgym.models.block_attention import attend_block, merge_

SharedPrefix = tuple[list[Tensor], list[Tensor]]
"""Keys and values by layer [1, kv_heads, prefix, size]."""


@dataclass(frozen=True)
class NewTokens:
    """Tokens of one slot that a prefill pass computes: `count` of them, behind those that the slot holds."""

    slot: int
    count: int


class PrefillAttention:
    """Attention of the new tokens of several slots, one behind the other in a single row without padding."""

    def __init__(self, cache: KVCache, pieces: Sequence[NewTokens], shared_prefix: SharedPrefix | None) -> None:
        self.cache, self.pieces, self.shared_prefix = cache, pieces, shared_prefix

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """From query [1, heads, tokens, size] and key, value [1, kv_heads, tokens, size] to query's shape."""
        grouped, key, value = query[0].unflatten(0, (key.shape[1], -1)), key[0], value[0]
        attended, start = [], 0
        for piece in self.pieces:
            new = slice(start, start + piece.count)
            attended.append(self._attend(layer, piece, grouped[:, :, new], key[:, new], value[:, new], scaling))
            start += piece.count
        joined = torch.cat(attended, dim=2) if len(attended) > 1 else attended[0]
        return joined.flatten(0, 1)[None]

    def _attend(
        self, layer: int, piece: NewTokens, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        """Of one slot: over the new tokens causally, and over what all of them see."""
        cache, held = self.cache, self.cache.own_length(piece.slot)
        keys, values = cache.own.keys[layer][piece.slot], cache.own.values[layer][piece.slot]
        out, lse = attend_block(query, key, value, True, scaling)
        out = out.float()
        if held:
            merge_(out, lse, *attend_block(query, keys[:, :held], values[:, :held], False, scaling))
        prompt = cache.prompts[piece.slot]
        if prompt is not None:
            of_prompt = (prompt, slice(None), slice(cache.prompt_lengths[prompt]))
            keys_of_prompt, values_of_prompt = (
                cache.shared.keys[layer][of_prompt],
                cache.shared.values[layer][of_prompt],
            )
            merge_(out, lse, *attend_block(query, keys_of_prompt, values_of_prompt, False, scaling))
        if self.shared_prefix is not None:
            prefix_keys, prefix_values = self.shared_prefix
            merge_(out, lse, *attend_block(query, prefix_keys[layer][0], prefix_values[layer][0], False, scaling))
        keys[:, held : held + piece.count], values[:, held : held + piece.count] = key, value
        return out.to(value.dtype)


class DecodeAttention:
    """Attention of one new token in each of the first `rows` slots."""

    def __init__(self, cache: KVCache, rows: int, shared_prefix: SharedPrefix | None) -> None:
        self.cache, self.shared_prefix = cache, shared_prefix
        device, dtype = cache.own.keys[0].device, cache.own.keys[0].dtype
        places = torch.tensor([cache.own_length(slot) for slot in range(rows)], device=device)  # [rows]
        self.reach = int(places.max()) + 1
        self.own_mask = _mask(places + 1, self.reach, dtype)
        kv_heads, capacity = cache.own.keys[0].shape[1], cache.capacity
        first = torch.arange(rows * kv_heads, device=device).view(rows, kv_heads) * capacity
        self.written = (first + places[:, None]).flatten()  # [rows · kv_heads] lines of [slots · kv_heads · capacity]
        self.prompts = _PromptRows.of(cache, rows)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """From query [rows, heads, 1, size] and key, value [rows, kv_heads, 1, size] to query's shape."""
        rows, kv_heads, size = len(query), key.shape[1], query.shape[-1]
        keys, values = self.cache.own.keys[layer], self.cache.own.values[layer]
        keys.view(-1, size).index_copy_(0, self.written, key.reshape(-1, size))
        values.view(-1, size).index_copy_(0, self.written, value.reshape(-1, size))
        # The heads that share a key head are queries of it: [rows, kv_heads, group, size]
        grouped = query.reshape(rows, kv_heads, -1, size)
        own_keys, own_values = keys[:rows, :, : self.reach], values[:rows, :, : self.reach]
        out, lse = _attend_masked(grouped, own_keys, own_values, self.own_mask, scaling)
        out = out.float()
        if self.prompts is not None:
            merge_(out, lse, *self.prompts.attend(self.cache, layer, grouped, scaling))
        if self.shared_prefix is not None:
            by_head = grouped.permute(1, 2, 0, 3)  # [kv_heads, group, rows, size]
            prefix_keys, prefix_values = self.shared_prefix
            seen, seen_lse = attend_block(by_head, prefix_keys[layer][0], prefix_values[layer][0], False, scaling)
            merge_(out, lse, seen.permute(2, 0, 1, 3), seen_lse.permute(2, 0, 1))
        return out.view(query.shape).to(value.dtype)


@dataclass(frozen=True)
class _PromptRows:
    """Which rows have which shared prompt: rows of one prompt are queries of it, padded to the largest number."""

    prompts: slice
    members: Tensor
    """[prompts · most] rows by prompt; padding repeats row 0."""
    place: Tensor
    """[rows] where each row is among the members; 0 for a row without a prompt."""
    without: Tensor | None
    """[rows] True for a row without a prompt; None if all have one."""
    mask: Tensor
    """[prompts, 1, 1, longest] 0 for the tokens of a prompt, -inf behind them."""

    @classmethod
    def of(cls, cache: KVCache, rows: int) -> _PromptRows | None:
        """The prompts of the first slots; None if none of them has one."""
        by_prompt: dict[int, list[int]] = {}
        for row, prompt in enumerate(cache.prompts[:rows]):
            if prompt is not None:
                by_prompt.setdefault(prompt, []).append(row)
        if not by_prompt:
            return None
        first, last = min(by_prompt), max(by_prompt) + 1
        most = max(map(len, by_prompt.values()))
        device, dtype = cache.shared.keys[0].device, cache.shared.keys[0].dtype
        members = torch.zeros(last - first, most, dtype=torch.long)
        place = torch.full((rows,), -1)
        for prompt, held in by_prompt.items():
            members[prompt - first, : len(held)] = torch.tensor(held)
            place[held] = torch.arange(len(held)) + (prompt - first) * most
        without = (place < 0).to(device)
        lengths = torch.tensor(cache.prompt_lengths[first:last], device=device)
        return cls(
            prompts=slice(first, last),
            members=members.flatten().to(device),
            place=place.clamp(min=0).to(device),
            without=without if bool(without.any()) else None,
            mask=_mask(lengths, int(lengths.max()), dtype),
        )

    def attend(self, cache: KVCache, layer: int, query: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Attention of query [rows, kv_heads, group, size] over the shared prompt of each row."""
        kv_heads, group, size = query.shape[1:]
        count = len(self.mask)
        longest = self.mask.shape[-1]
        keys = cache.shared.keys[layer][self.prompts, :, :longest]
        values = cache.shared.values[layer][self.prompts, :, :longest]
        gathered = query[self.members].view(count, -1, kv_heads, group, size).transpose(1, 2)
        out, lse = _attend_masked(gathered.reshape(count, kv_heads, -1, size), keys, values, self.mask, scaling)
        out = out.view(count, kv_heads, -1, group, size).transpose(1, 2).flatten(0, 1)[self.place]
        lse = lse.view(count, kv_heads, -1, group).transpose(1, 2).flatten(0, 1)[self.place]
        if self.without is not None:
            lse = lse.masked_fill(self.without[:, None, None], float("-inf"))
        return out, lse


def _attend_masked(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """Attention of query [rows, kv_heads, queries, size] over key [rows, kv_heads, keys, size], and its log-sum-exp.

    Of a few queries per row the CPU kernel is faster in bfloat16, and two products are faster in float32.
    """
    if query.device.type == "cpu" and query.dtype != torch.float32:
        masks = mask.expand(-1, -1, query.shape[2], -1)
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, False, attn_mask=masks, scale=scaling
        )
    scores = ((query * scaling) @ key.transpose(2, 3)).float().add_(mask)
    top = scores.amax(dim=-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    total = weights.sum(dim=-1, keepdim=True)
    return (weights.to(value.dtype) @ value).float().div_(total), top.add_(total.log_())[..., 0]


def _mask(lengths: Tensor, longest: int, dtype: torch.dtype) -> Tensor:
    """[rows, 1, 1, longest] 0 for the first tokens of a row, -inf behind them."""
    hidden = torch.arange(longest, device=lengths.device) >= lengths[:, None]
    mask = torch.zeros(hidden.shape, dtype=dtype, device=lengths.device).masked_fill_(hidden, float("-inf"))
    return mask[:, None, None]
