"""The forward pass of the engine on a CPU: the same weights, packed for oneDNN, in fewer and larger products.

A Transformers layer multiplies seven matrices and takes some forty small operations; with few rows, these and the calls
of their modules cost more than the products. Here a layer is

    x ── norm ── [q k v] ── RoPE ── attention ── o ── + ── norm ── [gate up] ── act(gate) · up ── down ── + ──>
    └─────────────────────────────────────────────────┘└───────────────────────────────────────────────────┘

Matrices in brackets read the same input, so they are one product. oneDNN reorders a weight once into blocks that its
kernels read in order, which is much faster than `linear` with few rows (`python -m benchmarks.products`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmgym.engines.torch.int8_product import Int8Product
from lmgym.models.attention import AttentionBackend
from lmgym.models.language_model import LLAMA_LIKE, LanguageModel, base_network
from lmgym.models.lora import base_linear, low_rank_factors
from lmgym.models.onednn_products import PACKED_ROWS


def supports_fusion(model: LanguageModel) -> bool:
    """Whether `FusedDecoder` can compute this model: its architecture, its layers and this build of torch."""
    if model.network.config.model_type not in LLAMA_LIKE or model.device.type != "cpu":
        return False
    linears = [linear for layer in FusedDecoder(model).products for linear in layer.linears]
    return all(low_rank_factors(linear) is not None for linear in linears) and _can_pack(model.dtype)


@lru_cache(maxsize=4)
def _can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN is there and its packed product is the ordinary one."""
    if not torch.backends.mkldnn.is_available():
        return False
    linear = nn.Linear(48, 80)
    states = torch.linspace(-1, 1, 3 * 48).view(3, 48)
    product = Product([linear], dtype)
    try:
        product.pack()
        return torch.allclose(product(states).float(), linear(states), atol=0.05 if dtype != torch.float32 else 1e-4)
    except (RuntimeError, NotImplementedError, AttributeError):  # the operators are not part of torch's public API
        return False


class Product:
    """The product with the weights of one or several linear layers, stacked and packed, and with their adapters."""

    def __init__(self, linears: Sequence[nn.Module], dtype: torch.dtype) -> None:
        self.linears = linears
        self.dtype = dtype
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        self.low_rank: tuple[Tensor, Tensor] | None = None
        """Of LoRA adapters: [ranks, inputs] and, block by block, [outputs, ranks]."""

    @torch.no_grad()
    def pack(self) -> None:
        """Copies the current weights of its layers."""
        self.release()
        bases = [base_linear(linear) for linear in self.linears]
        self.weight = torch.ops.mkldnn._reorder_linear_weight(
            _stack([b.weight for b in bases], self.dtype), PACKED_ROWS
        )
        if bases[0].bias is not None:
            self.bias = _stack([base.bias for base in bases], self.dtype)
        factors = [low_rank_factors(linear) or () for linear in self.linears]
        if any(factors):
            down = _stack([down for each in factors for down, _ in each], self.dtype)
            outputs = [
                torch.cat([up for _, up in each], dim=1) if each else base.weight[:, :0]
                for each, base in zip(factors, bases, strict=True)
            ]
            self.low_rank = down, torch.block_diag(*outputs).to(self.dtype)

    def release(self) -> None:
        """Frees the copies."""
        self.weight = self.bias = self.low_rank = None

    def __call__(self, states: Tensor) -> Tensor:
        """From [..., inputs] to [..., outputs of all layers], in the compute dtype."""
        states = states.to(self.dtype)
        outputs = torch.ops.mkldnn._linear_pointwise(states, self.weight, self.bias, "none", [], "")
        if self.low_rank is None:
            return outputs
        down, up = self.low_rank
        return outputs + F.linear(F.linear(states, down), up)


@dataclass(frozen=True)
class Layer:
    """One decoder layer: its products, and the modules of the network that it reads the rest from."""

    qkv: Product | Int8Product
    out: Product | Int8Product
    gate_up: Product | Int8Product
    down: Product | Int8Product
    attention: Any
    mlp: Any
    norm_before_attention: Any
    norm_before_mlp: Any


class FusedDecoder:
    """Hidden states and logits of a model for the engine; norms and embeddings are the model's own."""

    def __init__(self, model: LanguageModel, rounds_to_int8: bool = False) -> None:
        """With `rounds_to_int8` the products are those of int8_product.py, and all else is float32."""
        self.model = model
        self.dtype = torch.float32 if rounds_to_int8 else model.dtype
        self.rounds_to_int8 = rounds_to_int8
        self.decoder: Any = base_network(model.network).get_decoder()
        config = model.network.config
        self.kv_heads, self.heads = config.num_key_value_heads, config.num_attention_heads
        self.layers = [self._layer(layer) for layer in self.decoder.layers]
        self.head = self._product(model.head)

    def _layer(self, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        return Layer(
            self._product(attention.q_proj, attention.k_proj, attention.v_proj),
            self._product(attention.o_proj),
            self._product(mlp.gate_proj, mlp.up_proj),
            self._product(mlp.down_proj),
            attention,
            mlp,
            layer.input_layernorm,
            layer.post_attention_layernorm,
        )

    def _product(self, *linears: nn.Module) -> Product | Int8Product:
        return Int8Product(linears) if self.rounds_to_int8 else Product(linears, self.dtype)

    @property
    def products(self) -> list[Product | Int8Product]:
        """All packed weights."""
        inside = [p for layer in self.layers for p in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        return [*inside, self.head]

    def pack(self) -> None:
        """Takes over the model's current weights."""
        for product in self.products:
            product.pack()

    def release(self) -> None:
        """Frees the packed weights, until `pack` is called again."""
        for product in self.products:
            product.release()

    @torch.no_grad()
    def hidden_states(self, tokens: Tensor, positions: Tensor, backend: AttentionBackend) -> Tensor:
        """Last hidden states [rows, tokens, hidden_size] of tokens [rows, tokens], as `LanguageModel.hidden_states`."""
        states = self.decoder.embed_tokens(tokens)  # float32, as the residual stream
        cosines, sines = self.decoder.rotary_emb(states, positions)  # [rows, tokens, size], both halves alike
        half = cosines.shape[-1] // 2
        cosines, sines = cosines[:, :, None, :half], sines[:, :, None, :half]
        for index, layer in enumerate(self.layers):
            attended = self._attend(index, layer, _norm(states, layer.norm_before_attention), cosines, sines, backend)
            states = layer.out(attended) + states
            gate, up = layer.gate_up(_norm(states, layer.norm_before_mlp)).chunk(2, dim=-1)
            states = layer.down(layer.mlp.act_fn(gate).mul_(up)) + states
        return _norm(states, self.decoder.norm)

    def _attend(
        self, index: int, layer: Layer, states: Tensor, cosines: Tensor, sines: Tensor, backend: AttentionBackend
    ) -> Tensor:
        """The attention of one layer [rows, tokens, heads · size], before its output projection."""
        projected = layer.qkv(states).unflatten(-1, (self.heads + 2 * self.kv_heads, -1))
        query_key, value = projected.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
        if hasattr(layer.attention, "q_norm"):
            norms = [(layer.attention.q_norm, self.heads), (layer.attention.k_norm, self.kv_heads)]
            parts = query_key.split([heads for _, heads in norms], dim=2)
            query_key = torch.cat([_norm(part, norm) for part, (norm, _) in zip(parts, norms, strict=True)], dim=2)
        query_key = _rotate(query_key, cosines, sines).to(self.dtype)
        query, key = query_key.split([self.heads, self.kv_heads], dim=2)
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        attended = backend.attend(index, query, key, value, layer.attention.scaling)  # [rows, heads, tokens, size]
        return attended.transpose(1, 2).flatten(2)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """The logits [rows, vocabulary] of hidden states [rows, hidden_size]."""
        return self.model.logit_transform.apply_(self.head(hidden))


def _norm(states: Tensor, norm: Any) -> Tensor:
    """RMSNorm with the weight of a module, in float32."""
    return F.rms_norm(states.float(), (states.shape[-1],), norm.weight, norm.variance_epsilon)


def _rotate(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """RoPE of [rows, tokens, heads, size] in float32: the pair (x_i, x_{i + size / 2}) is turned by its angle."""
    first, second = states.chunk(2, dim=-1)
    rotated = torch.empty(states.shape, dtype=torch.float32, device=states.device)
    into_first, into_second = rotated.chunk(2, dim=-1)
    torch.mul(first, cosines, out=into_first).addcmul_(second, sines, value=-1)
    torch.mul(second, cosines, out=into_second).addcmul_(first, sines)
    return rotated


def _stack(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat([tensor.to(dtype) for tensor in tensors]) if len(tensors) > 1 else tensors[0].to(dtype)
