"""Tree attention by FlexAttention: one kernel with the ancestor mask, which is compiled for the GPU.

The visible keys are those of tree_attention.py, whose blocks suit a CPU: a GPU would start a kernel for each of them.
With P tokens of the shared prefix before the nodes, query q sees key k if and only if

    k < P    or    k − P ≤ q ≤ subtree_end[k − P]
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from lmgym.console import messages
from lmgym.models.language_model import LanguageModel
from lmgym.models.tree_attention import TreeAttention

NODES = 160
"""Nodes of the tree that the kernel is tried with: two chains, longer than a block of the kernel."""


class FlexTreeAttention:
    """Attention of the nodes of a prefix tree [1, heads, nodes, size] over a shared prefix and over their ancestors."""

    def __init__(self, prefix_keys: list[Tensor], prefix_values: list[Tensor], subtree_end: Tensor) -> None:
        """Takes the prefix's keys and values per layer [1, kv_heads, prefix, size], or none, and the tree's [nodes]."""
        self.prefix_keys, self.prefix_values = prefix_keys, prefix_values
        prefix, nodes = prefix_keys[0].shape[2] if prefix_keys else 0, len(subtree_end)
        # A key of the prefix is an ancestor of every node.
        ends = torch.cat([subtree_end.new_full((prefix,), nodes), subtree_end])

        def is_visible(_row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key - prefix <= query) & (query <= ends[key])

        self.mask = create_block_mask(is_visible, None, None, nodes, prefix + nodes, device=str(subtree_end.device))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """From query [1, heads, nodes, size] and key, value [1, kv_heads, nodes, size] to query's shape."""
        if self.prefix_keys:
            key = torch.cat([self.prefix_keys[layer], key], dim=2)
            value = torch.cat([self.prefix_values[layer], value], dim=2)
        attended: Tensor = _kernel(query.device.type)(
            query, key, value, block_mask=self.mask, scale=scaling, enable_gqa=True
        )
        return attended


def flex_works(model: LanguageModel) -> bool:
    """Whether the kernel compiles on the model's device, and gives the blocks' results and gradients."""
    config = model.network.config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    random = torch.Generator().manual_seed(0)
    shapes = [(1, heads, NODES, size), *[(1, kv_heads, NODES, size)] * 2]
    tensors = [torch.randn(shape, generator=random).to(model.device, model.dtype) for shape in shapes]
    half = torch.full((NODES // 2,), NODES // 2 - 1)
    subtree_end = torch.cat([half, torch.full((NODES - NODES // 2,), NODES - 1)]).to(model.device)
    found = []
    try:
        for kind in (FlexTreeAttention, TreeAttention):
            leaves = [tensor.clone().requires_grad_() for tensor in tensors]
            query, key, value = leaves
            attended = kind([], [], subtree_end).attend(0, query, key, value, size**-0.5)
            attended.float().square().sum().backward()
            found.append([attended.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)])
    except Exception as error:  # no compiler, an old GPU: whatever it raises, the blocks work
        reason = (str(error).splitlines() or [""])[0]
        messages.print(f"FlexAttention cannot be used ({type(error).__name__}: {reason}); attention is in blocks.")
        return False
    tolerance = 1e-3 if model.dtype == torch.float32 else 0.1
    return all(
        torch.allclose(one.float(), other.float(), rtol=tolerance, atol=tolerance)
        for one, other in zip(*found, strict=True)
    )


@cache
def _kernel(device_type: str) -> Any:
    """FlexAttention, compiled where that makes one kernel of it."""
    return torch.compile(flex_attention, dynamic=True) if device_type == "cuda" else flex_attention
