"""Attention over a shared prefix: its keys and values are computed once and attended to by every sequence."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface, PretrainedConfig

IMPLEMENTATION = "lmgym"
"""Name under which `_attention` is registered with Transformers."""

PLAIN_IMPLEMENTATION = "sdpa"
"""The default of Transformers for the architectures below."""

CHUNK = 64
"""Queries per chunk of tree attention: they share one set of gathered keys."""

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


class TreeAttention:
    """Attention of the nodes of a prefix tree [1, heads, nodes, size] over a shared prefix and over their ancestors.

    The nodes are cut into chunks of CHUNK queries, and each chunk gathers the keys that at least one of its queries
    attends to. Node i is visible to node j if i ≤ j ≤ subtree_end[i] (see prefix_tree.py), so these are

        the shared prefix  +  the ancestors of the chunk's first node  +  the chunk's own nodes.

    An ancestor of a later node of the chunk is either an ancestor of the first node too, or in the chunk itself. The
    tree of prefix_tree.py with CHUNK = 4 and x for "visible":

        0:2 ─ 1:3 ─┬─ 2:5 ─┬─ 3:6 ─ 4:7
                   │       └─ 5:8
                   └─ 6:9

        chunk 0    prefix | 0 1 2 3 | 4 5 6      chunk 1    prefix | 0 1 2 3 | 4 5 6
        query 0      x    | x . . . | . . .      query 4      x    | x x x x | x . .
        query 1      x    | x x . . | . . .      query 5      x    | x x x . | . x .
        query 2      x    | x x x . | . . .      query 6      x    | x x . . | . . x
        query 3      x    | x x x x | . . .      padding      x    | x . . . | . . .

    All chunks have the width of the widest one. Chunk 0 is filled up with nodes 4 5 6, which the same rule masks,
    because they come after its queries. The padding of the last chunk attends to one node, so that its softmax is not
    nan, and is dropped from the result.

    Cost: nodes · (prefix + depth + CHUNK) instead of nodes · (prefix + nodes), so a wide tree costs little more than
    its longest path. Memory: gathered keys and values [chunks, kv_heads, prefix + width, size] of one layer.
    """

    def __init__(
        self, prefix_keys: list[Tensor], prefix_values: list[Tensor], subtree_end: Tensor, dtype: torch.dtype
    ) -> None:
        """Takes the prefix's keys and values per layer [1, kv_heads, prefix, size], or none, and the tree's [nodes]."""
        self.prefix_keys, self.prefix_values = prefix_keys, prefix_values
        self.nodes = len(subtree_end)
        prefix, device = prefix_keys[0].shape[2] if prefix_keys else 0, subtree_end.device
        starts = torch.arange(0, self.nodes, CHUNK, device=device)  # [chunks]
        node = torch.arange(self.nodes, device=device)  # [nodes]
        # Ancestors of the first node have subtree_end ≥ start; so have all nodes of the chunk.
        needed = (subtree_end >= starts[:, None]) & (node < starts[:, None] + CHUNK)  # [chunks, nodes]
        self.chunks, width = len(starts), int(needed.sum(dim=1).max())
        # The stable sort puts the needed nodes first, in order; whatever fills up the width is masked below.
        gathered = needed.logical_not().long().argsort(dim=1, stable=True)[:, :width]  # [chunks, width]
        query = torch.arange(self.chunks * CHUNK, device=device).view(self.chunks, CHUNK, 1)
        visible = (gathered[:, None] <= query) & (query <= subtree_end[gathered][:, None])  # [chunks, CHUNK, width]
        visible[:, :, 0] |= query[:, :, 0] >= self.nodes  # padding queries
        bias = torch.zeros(self.chunks, 1, CHUNK, prefix + width, dtype=dtype, device=device)
        bias[:, 0, :, prefix:].masked_fill_(~visible, float("-inf"))
        self.bias = bias
        prefix_index = torch.arange(prefix, device=device).expand(self.chunks, -1)  # [chunks, prefix]
        self.key_index = torch.cat([prefix_index, prefix + gathered], dim=1)  # [chunks, prefix + width]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """From query [1, heads, nodes, size] and key, value [1, kv_heads, nodes, size] to query's shape."""
        padding = (0, 0, 0, self.chunks * CHUNK - self.nodes)
        heads, size = query.shape[1], query.shape[3]
        chunked = F.pad(query[0], padding).view(heads, self.chunks, CHUNK, size).transpose(0, 1)
        attended = F.scaled_dot_product_attention(
            chunked,  # [chunks, heads, CHUNK, size]
            self._gather(self.prefix_keys[layer] if self.prefix_keys else None, key),
            self._gather(self.prefix_values[layer] if self.prefix_values else None, value),
            attn_mask=self.bias,  # [chunks, 1, CHUNK, prefix + width]
            scale=scaling,
            enable_gqa=True,
        )
        return attended.transpose(0, 1).reshape(1, heads, -1, size)[:, :, : self.nodes]

    def _gather(self, of_prefix: Tensor | None, of_nodes: Tensor) -> Tensor:
        """Keys or values of each chunk [chunks, kv_heads, prefix + width, size]."""
        joined = of_nodes if of_prefix is None else torch.cat([of_prefix, of_nodes], dim=2)
        table = joined[0].transpose(0, 1).flatten(1)  # [prefix + nodes, kv_heads · size]
        # An embedding, because its backward pass (a scatter-add) is faster than that of an index.
        return F.embedding(self.key_index, table).unflatten(2, (of_nodes.shape[1], -1)).transpose(1, 2)
