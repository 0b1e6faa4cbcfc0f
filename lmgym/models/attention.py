"""Attention over a shared trunk: rows that begin alike read the same keys and values, computed once."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface, PretrainedConfig

IMPLEMENTATION = "lmgym"
PLAIN_IMPLEMENTATION = "sdpa"
"""What Transformers gives the architectures below by default."""

CHUNK = 64
"""How many nodes of a tree look at the same keys together."""

SHARING_MODEL_TYPES = {"gemma", "llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2"}
"""Architectures whose attention is plain causal softmax and goes through Transformers' attention interface."""

LENGTH_DEPENDENT_ROPES = {"longrope", "dynamic"}
"""Rotary embeddings whose frequencies depend on the length of the whole sequence."""


def can_share(config: PretrainedConfig) -> bool:
    """Whether the fast, prefix-sharing path is exact for this architecture; every other takes the plain path."""
    windows = getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None)
    return config.model_type in SHARING_MODEL_TYPES and not windows


def unstretched_lengths(config: PretrainedConfig) -> list[int]:
    """How many tokens the rotary embeddings take before they change the frequencies of all of them.

    Past that length the keys of earlier tokens are other ones, so neither a sampler that keeps keys nor a learner that
    shares them could go on.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    # Either the parameters of all layers, or those of each type of layer.
    kinds = [kind for kind in (parameters, *parameters.values()) if isinstance(kind, dict)]
    changing = [kind for kind in kinds if kind.get("rope_type") in LENGTH_DEPENDENT_ROPES]
    return [kind["original_max_position_embeddings"] for kind in changing if "original_max_position_embeddings" in kind]


class Reader(Protocol):
    """What one forward pass may look at beyond its own tokens, and what it leaves behind."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """From query [rows, heads, tokens, size] and key, value [rows, kv_heads, tokens, size] to query's shape."""
        ...


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    reader: Reader,
    **_: Any,
) -> tuple[Tensor, None]:
    # Rotary embeddings may lift query and key to float32 under autocast: the value's type is the one computed in.
    query, key = query.to(value.dtype), key.to(value.dtype)
    return reader.attend(module.layer_idx, query, key, value, scaling).transpose(1, 2).contiguous(), None


AttentionInterface.register(IMPLEMENTATION, _attention)


class TrunkRecorder:
    """Plain causal attention that keeps each layer's keys and values for others to read."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attends within the trunk; layers arrive in order."""
        self.keys.append(key)
        self.values.append(value)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)


class TreeReader:
    """Attention of the nodes of a prefix tree [1, heads, nodes, size] over a trunk and over those they grow from.

    The nodes are cut into chunks. Of all that stands before a chunk only the nodes whose subtree reaches into it can be
    seen from there, so each chunk looks at these and at itself, and a wide tree costs little more than its depth.
    """

    def __init__(self, keys: list[Tensor], values: list[Tensor], ends: Tensor, dtype: torch.dtype) -> None:
        """`ends` [nodes] is the last node of each subtree; the trunk has keys, values [1, kv_heads, length, size]."""
        self.keys, self.values = keys, values
        self.nodes = len(ends)
        trunk, device = keys[0].shape[2] if keys else 0, ends.device
        starts = torch.arange(0, self.nodes, CHUNK, device=device)
        node = torch.arange(self.nodes, device=device)
        reaches = (ends >= starts[:, None]) & (node < starts[:, None] + CHUNK)  # [chunks, nodes]
        self.chunks, width = len(starts), int(reaches.sum(dim=1).max())
        # The nodes that each chunk looks at come first in a stable sort, in order; then others, which are hidden.
        looked_at = reaches.logical_not().long().argsort(dim=1, stable=True)[:, :width]
        query = torch.arange(self.chunks * CHUNK, device=device).view(self.chunks, CHUNK, 1)
        seen = (looked_at[:, None] <= query) & (query <= ends[looked_at][:, None])
        seen[:, :, 0] |= query[:, :, 0] >= self.nodes  # padding must see something, or it becomes nan
        bias = torch.zeros(self.chunks, 1, CHUNK, trunk + width, dtype=dtype, device=device)
        bias[:, 0, :, trunk:].masked_fill_(~seen, float("-inf"))
        self.bias = bias
        self.table = torch.cat([torch.arange(trunk, device=device).expand(self.chunks, -1), trunk + looked_at], dim=1)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Gathers for each chunk the keys and values that it looks at."""
        padding = (0, 0, 0, self.chunks * CHUNK - self.nodes)
        heads, size = query.shape[1], query.shape[3]
        chunked = F.pad(query[0], padding).view(heads, self.chunks, CHUNK, size).transpose(0, 1)
        mixed = F.scaled_dot_product_attention(
            chunked,
            self._gather(self.keys[layer] if self.keys else None, key),
            self._gather(self.values[layer] if self.values else None, value),
            attn_mask=self.bias,
            scale=scaling,
            enable_gqa=True,
        )
        return mixed.transpose(0, 1).reshape(1, heads, -1, size)[:, :, : self.nodes]

    def _gather(self, trunk: Tensor | None, own: Tensor) -> Tensor:
        """[chunks, kv_heads, looked at, size]; an embedding, because its backward pass adds up fast."""
        rows = own if trunk is None else torch.cat([trunk, own], dim=2)
        flat = rows[0].transpose(0, 1).flatten(1)
        return F.embedding(self.table, flat).unflatten(2, (own.shape[1], -1)).transpose(1, 2)
