"""The layers of a decoder while it learns on a CPU: the same results, fewer tensors kept for the backward pass.

Autograd keeps the input of every operation. Of a layer of Llama with hidden states of size d and an MLP of size m it
keeps about 11 d + 3 m numbers per token; these functions keep about 7 d + 2 m and compute the others again, which is
elementwise and cheap:

    norm        keeps x and one number per token               y = w · x / rms(x)
    gated MLP   keeps y, gate and up                           silu(gate) · up is computed again
    linear      keeps its input; products are oneDNN's in float32 (onednn_products.py)
    embedding   adds its gradient to the rows of `.grad` that were read, instead of a tensor of the vocabulary's size

Under autocast a norm returns the compute dtype, so that all products after it read, and keep, the same tensor; a weight
is converted again in the backward pass, instead of keeping the converted copy of every weight.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmgym.models.language_model import LLAMA_LIKE, LanguageModel, base_network
from lmgym.models.onednn_products import product


@contextlib.contextmanager
def low_memory_layers(model: LanguageModel) -> Iterator[None]:
    """While it is active, the model computes on a CPU with the functions of this module, in both directions."""
    # A sharded network gathers its weights for the modules of Transformers.
    forwards = _low_memory_forwards(model) if model.device.type == "cpu" and not model.is_sharded else {}
    for module, forward in forwards.items():
        module.forward = MethodType(forward, module)  # of this module alone, also when activations are recomputed
    try:
        yield
    finally:
        for module in forwards:
            del module.forward


def _low_memory_forwards(model: LanguageModel) -> dict[Any, Callable[..., Tensor]]:
    """The modules to replace the forward pass of: linear layers of any model, and all others of those like Llama."""
    network = base_network(model.network)
    forwards: dict[Any, Callable[..., Tensor]] = {
        module: _linear for module in network.modules() if type(module) is nn.Linear
    }
    if model.network.config.model_type in LLAMA_LIKE:
        decoder: Any = network.get_decoder()
        forwards |= {norm: _norm for layer in decoder.layers for norm in _norms(layer)}
        forwards |= {layer.mlp: _gated_mlp for layer in decoder.layers if _is_plain(layer.mlp)}
        if type(decoder.embed_tokens) is nn.Embedding:
            forwards[decoder.embed_tokens] = _embedding
    return forwards


def _norms(layer: Any) -> tuple[nn.Module, nn.Module]:
    return layer.input_layernorm, layer.post_attention_layernorm


def _is_plain(mlp: Any) -> bool:
    """Whether an MLP is down(silu(gate(x)) · up(x)), without adapters and biases."""
    linears = (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    has_silu = isinstance(mlp.act_fn, nn.SiLU) or type(mlp.act_fn).__name__ == "SiLUActivation"
    return has_silu and all(type(linear) is nn.Linear and linear.bias is None for linear in linears)


def _linear(self: nn.Linear, states: Tensor) -> Tensor:
    return _Linear.apply(states, self.weight, self.bias, _compute_dtype(states))


def _gated_mlp(self: Any, states: Tensor) -> Tensor:
    weights = self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight
    return _GatedMlp.apply(states, *weights, _compute_dtype(states))


def _norm(self: Any, states: Tensor) -> Tensor:
    return _RMSNorm.apply(states, self.weight, self.variance_epsilon, _compute_dtype(states))


def _embedding(self: nn.Embedding, tokens: Tensor) -> Tensor:
    return _Embedding.apply(tokens, self.weight, self.padding_idx)


def _compute_dtype(states: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else states.dtype


class _Linear(torch.autograd.Function):
    """y = x Wᵀ + b of x [..., inputs], W [outputs, inputs] and b [outputs] or None, computed in a dtype."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        """One product."""
        states = states.to(dtype)
        ctx.save_for_backward(states, weight)
        return product(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """∂x = ∂y W,  ∂W = ∂yᵀ x,  ∂b = Σ ∂y; each only where it is needed."""
        states, weight = ctx.saved_tensors
        gradient = gradients[0]
        by_states = product(gradient, weight.t()) if ctx.needs_input_grad[0] else None
        by_weight = _by_weight(gradient, states) if ctx.needs_input_grad[1] else None
        by_bias = gradient.flatten(0, -2).sum(dim=0) if ctx.needs_input_grad[2] else None
        return by_states, by_weight, by_bias, None


class _GatedMlp(torch.autograd.Function):
    """y = (silu(x Wgᵀ) · x Wuᵀ) Wdᵀ of x [..., inputs]; the weights are those of gate, up and down."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, gate: Tensor, up: Tensor, down: Tensor, dtype: torch.dtype) -> Tensor:
        """Three products."""
        states = states.to(dtype)
        gate_output, up_output = product(states, gate), product(states, up)
        ctx.save_for_backward(states, gate_output, up_output, gate, up, down)
        return product(F.silu(gate_output).mul_(up_output), down)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """With a = silu(g) · u:  ∂a = ∂y Wd,  ∂u = ∂a · silu(g),  ∂g = ∂a · u · silu'(g),  ∂x = ∂g Wg + ∂u Wu."""
        states, gate_output, up_output, gate, up, down = ctx.saved_tensors
        needs_states, needs_gate, needs_up, needs_down, _ = ctx.needs_input_grad
        gradient = gradients[0]
        activated = F.silu(gate_output)
        by_down = _by_weight(gradient, activated * up_output) if needs_down else None
        by_product = product(gradient, down.t())
        by_up_output = activated.mul_(by_product)
        by_up = _by_weight(by_up_output, states) if needs_up else None
        by_gate_output = torch.ops.aten.silu_backward(by_product.mul_(up_output), gate_output)
        by_gate = _by_weight(by_gate_output, states) if needs_gate else None
        by_states = product(by_gate_output, gate.t()).add_(product(by_up_output, up.t())) if needs_states else None
        return by_states, by_gate, by_up, by_down, None


class _RMSNorm(torch.autograd.Function):
    """y = w · x / rms(x) of x [..., size] in float32, returned in another dtype; rms(x)² = mean(x²) + ε."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
        """Keeps the states and 1 / rms, one number per token."""
        scale = torch.linalg.vecdot(states.float(), states.float())[..., None].div_(states.shape[-1])
        scale = scale.add_(epsilon).rsqrt_()
        ctx.save_for_backward(states, weight, scale)
        return (states * scale).mul_(weight).to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """With n = x / rms(x):  ∂w = Σ ∂y · n,  ∂x = (w · ∂y − n · mean(w · ∂y · n)) / rms(x)."""
        states, weight, scale = ctx.saved_tensors
        gradient = gradients[0].float()
        normal = states * scale
        by_weight = (gradient * normal).flatten(0, -2).sum(dim=0) if ctx.needs_input_grad[1] else None
        by_normal = gradient * weight
        inner = torch.linalg.vecdot(by_normal, normal)[..., None].div_(states.shape[-1])
        return by_normal.sub_(normal.mul_(inner)).mul_(scale), by_weight, None, None


class _Embedding(torch.autograd.Function):
    """The rows of a weight [vocabulary, size] at token ids [...]."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, padding_id: int | None) -> Tensor:
        """Keeps the ids."""
        ctx.tokens, ctx.weight, ctx.padding_id = tokens, weight, padding_id
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Adds to the rows of the weight's `.grad`, or returns a gradient where there is none yet.

        As in `nn.Embedding`, the row of the padding id gets no gradient, even if it is an ordinary token too.
        """
        if not ctx.needs_input_grad[1]:
            return None, None, None
        rows, ids = gradients[0].flatten(0, -2), ctx.tokens.flatten()
        if ctx.padding_id is not None:
            rows = rows.masked_fill((ids == ctx.padding_id)[:, None], 0.0)
        if ctx.weight.grad is not None:
            ctx.weight.grad.index_add_(0, ids, rows)
            return None, None, None
        return None, torch.zeros_like(ctx.weight).index_add_(0, ids, rows), None


def _by_weight(gradient: Tensor, states: Tensor) -> Tensor:
    """∂W = ∂yᵀ x; MKL is faster here than oneDNN, where the tokens are what is summed over."""
    return gradient.flatten(0, -2).t() @ states.flatten(0, -2)
