"""The attention interface: which networks share prefixes, and how a forward pass brings its own attention."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface, PretrainedConfig

IMPLEMENTATION = "lmgym"
"""Name under which `_attention` is registered with Transformers."""

PLAIN_IMPLEMENTATION = "sdpa"
"""The default of Transformers for the architectures below."""

PREFIX_SHARING_MODEL_TYPES = {"gemma", "llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2"}
"""Architectures with plain causal softmax attention that goes through the attention interface of Transformers."""

LENGTH_DEPENDENT_ROPES = {"longrope", "dynamic"}
"""RoPE types whose frequencies depend on the sequence length."""


def supports_prefix_sharing(config: PretrainedConfig) -> bool:
    """Whether prefix sharing can be exact for this architecture; all others use the plain path."""
    windows = getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None)
    return config.model_type in PREFIX_SHARING_MODEL_TYPES and not windows


def constant_rope_lengths(config: PretrainedConfig) -> list[int]:
    """Sequence lengths beyond which the RoPE frequencies of all positions change; empty if they never do.

    Beyond such a length the keys of earlier tokens change too, so neither a KV cache nor a shared prefix is valid.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    # Either the parameters of all layers, or those of each type of layer.
    kinds = [kind for kind in (parameters, *parameters.values()) if isinstance(kind, dict)]
    changing = [kind for kind in kinds if kind.get("rope_type") in LENGTH_DEPENDENT_ROPES]
    return [kind["original_max_position_embeddings"] for kind in changing if "original_max_position_embeddings" in kind]


class AttentionBackend(Protocol):
    """How one forward pass attends: it may add cached keys and values, and may record those of the pass."""

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
    backend: AttentionBackend,
    **_: Any,
) -> tuple[Tensor, None]:
    # RoPE may return float32 query and key under autocast; the value has the compute dtype.
    query, key = query.to(value.dtype), key.to(value.dtype)
    return backend.attend(module.layer_idx, query, key, value, scaling).transpose(1, 2).contiguous(), None


AttentionInterface.register(IMPLEMENTATION, _attention)


class PrefixRecorder:
    """Plain causal attention that records the keys and values of each layer."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        """One tensor per layer [rows, kv_heads, tokens, size]."""
        self.values: list[Tensor] = []
        """As `keys`."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Causal attention within the rows; layers are called in order."""
        self.keys.append(key)
        self.values.append(value)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
