"""Products with weight matrices by oneDNN instead of MKL, for learning in float32 on a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lmgym.models.language_model import LanguageModel, base_network


def fast_products(model: LanguageModel) -> contextlib.AbstractContextManager[Any]:
    """oneDNN's products for a model, unless its activations are recomputed: that happens out of the context's reach."""
    recomputes = base_network(model.network).is_gradient_checkpointing
    return contextlib.nullcontext() if recomputes else OneDnnProducts()


class OneDnnProducts(TorchFunctionMode):
    """While it is active, `linear` of float32 tensors on a CPU is computed by oneDNN, in both directions.

    Its kernels are faster than MKL's on AMD processors (`python -m benchmarks.products`), and the results differ by
    rounding only. Under autocast, on other devices and in builds of torch without
    oneDNN nothing changes.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replaces `linear` and nothing else."""
        if function is F.linear and not kwargs and _is_plain_float32(*args[:2]) and has_onednn():
            return _Linear.apply(*args, *[None] * (3 - len(args)))
        return function(*args, **(kwargs or {}))


class _Linear(torch.autograd.Function):
    """y = x Wᵀ + b of x [..., inputs], W [outputs, inputs] and b [outputs] or None."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """One product."""
        ctx.save_for_backward(states, weight)
        return multiply(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """∂x = ∂y W,  ∂W = ∂yᵀ x,  ∂b = Σ ∂y; each only where it is needed."""
        states, weight = ctx.saved_tensors
        needs_states, needs_weight, needs_bias = ctx.needs_input_grad
        gradient = gradients[0]
        flat = gradient.reshape(-1, gradient.shape[-1])
        by_states = multiply(gradient, weight.t()) if needs_states else None
        # MKL is faster here, where the tokens are what is summed over.
        by_weight = flat.t() @ states.reshape(-1, states.shape[-1]) if needs_weight else None
        return by_states, by_weight, flat.sum(dim=0) if needs_bias else None


def multiply(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """states weightᵀ + bias, without a gradient."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(states.detach(), weight.detach(), bias, "none", [], "")
    return product


@lru_cache(maxsize=1)
def has_onednn() -> bool:
    """Whether oneDNN is there and multiplies as it should; its operators are not part of torch's public API."""
    if not torch.backends.mkldnn.is_available():
        return False
    states, weight = torch.linspace(-1, 1, 60).view(5, 12), torch.linspace(1, -2, 84).view(7, 12)
    try:
        return torch.allclose(multiply(states, weight), states @ weight.t(), atol=1e-4)
    except (RuntimeError, NotImplementedError, AttributeError):
        return False


def _is_plain_float32(states: Tensor, weight: Tensor) -> bool:
    same = states.dtype == weight.dtype == torch.float32 and states.device.type == weight.device.type == "cpu"
    return same and weight.dim() == 2 and states.numel() > 0 and not torch.is_autocast_enabled("cpu")
