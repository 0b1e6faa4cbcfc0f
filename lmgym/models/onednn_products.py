"""Products with weight matrices on a CPU: by oneDNN instead of MKL in float32."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

PACKED_ROWS = 64
"""Number of rows that oneDNN chooses the blocks of a weight for; they are as fast as any others with 1 to 512 rows."""


def product(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b in the dtype of x [..., inputs], without a gradient; W is [outputs, inputs] and b [outputs] or None.

    In float32 oneDNN's kernels are faster than MKL's on AMD processors (`python -m benchmarks.products`), and the
    results differ by rounding only.
    """
    is_float32 = states.dtype == weight.dtype == torch.float32
    if is_float32 and states.device.type == "cpu" and states.numel() and has_onednn():
        return multiply(states, weight, bias)
    return F.linear(states, weight.to(states.dtype), None if bias is None else bias.to(states.dtype))


def multiply(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b by oneDNN."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(states.detach(), weight.detach(), bias, "none", [], "")
    return result


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
