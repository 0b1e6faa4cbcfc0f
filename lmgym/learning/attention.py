"""Attention over a shared trunk: rows that begin alike read the same keys and values, computed once."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface, PretrainedConfig

IMPLEMENTATION = "lmgym"

SHARING_MODEL_TYPES = {"llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2"}
"""Architectures whose attention is plain causal softmax and goes through Transformers' attention interface."""


def can_share(config: PretrainedConfig) -> bool:
    """Whether the fast, prefix-sharing path is exact for this architecture; every other takes the plain path."""
    windows = getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None)
    return config.model_type in SHARING_MODEL_TYPES and not windows


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


class TrunkReader:
    """Attention of packed rows over a trunk [1, kv_heads, length, size] and what `visible` allows of themselves."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], visible: Tensor, dtype: torch.dtype) -> None:
        self.keys, self.values = keys, values
        # Additive and made once, or every layer would convert it again.
        self.bias = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
        self.bias = self.bias.masked_fill_(~visible, float("-inf"))[:, None]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Lets every row see the trunk before its own tokens."""
        if self.keys:
            key = torch.cat([self.keys[layer].expand(len(key), -1, -1, -1), key], dim=2)
            value = torch.cat([self.values[layer].expand(len(value), -1, -1, -1), value], dim=2)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=self.bias, scale=scaling, enable_gqa=True)
