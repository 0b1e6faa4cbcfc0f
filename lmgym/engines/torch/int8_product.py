"""Products in 8-bit integers on a CPU, which are faster than in float32 where it has VNNI instructions.

    x [rows, inputs]      one scale per row       x ≈ a · (u − 128),  u in 1 … 255
    W [outputs, inputs]   one scale per output    W ≈ s · q,          q in −127 … 127

    y = a · s · Σ (u − 128) q + b                 the sum is exact, in 32-bit integers

A row is rounded by itself, so what it computes does not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from lmgym.models.lora import base_linear, low_rank_factors
from lmgym.models.onednn_products import PACKED_ROWS

LARGEST = 127
ZERO = 128
"""The unsigned integer that stands for 0: oneDNN has no fast kernel for signed inputs."""


class Int8Product:
    """The product with the weights of one or several linear layers, stacked and rounded to 8 bits."""

    def __init__(self, linears: Sequence[nn.Module]) -> None:
        self.linears = linears
        self.weight: Tensor | None = None
        self.scales: Tensor | None = None
        self.zeros: Tensor | None = None
        self.bias: Tensor | None = None

    @torch.no_grad()
    def pack(self) -> None:
        """Rounds the current weights of its layers, adapters included."""
        self.release()
        bases = [base_linear(linear) for linear in self.linears]
        weight = torch.cat([_merged(linear) for linear in self.linears]).float()
        largest = torch.maximum(weight.amax(dim=1), weight.amin(dim=1).neg_())
        self.scales = largest.div_(LARGEST).clamp_(min=torch.finfo(torch.float32).tiny)
        rounded = weight.div_(self.scales[:, None]).round_().to(torch.int8)
        self.weight = torch.ops.onednn.qlinear_prepack(rounded, [PACKED_ROWS, rounded.shape[1]])
        self.zeros = torch.zeros(len(rounded), dtype=torch.long)
        if bases[0].bias is not None:
            self.bias = torch.cat([base.bias for base in bases]).float()

    def release(self) -> None:
        """Frees the copies."""
        self.weight = self.scales = self.zeros = self.bias = None

    def __call__(self, states: Tensor) -> Tensor:
        """From [..., inputs] to [..., outputs of all layers], in float32."""
        rows = states.flatten(0, -2).float()
        scales = rows.abs().amax(dim=1, keepdim=True).div_(LARGEST).clamp_(min=torch.finfo(torch.float32).tiny)
        rounded = rows.div(scales).round_().add_(ZERO).to(torch.uint8)
        outputs = torch.ops.onednn.qlinear_pointwise(
            rounded, 1.0, ZERO, self.weight, self.scales, self.zeros, None, 1.0, 0, torch.float32, "none", [], ""
        ).mul_(scales)
        if self.bias is not None:
            outputs.add_(self.bias)
        return outputs.unflatten(0, states.shape[:-1])


def _merged(linear: nn.Module) -> Tensor:
    """The weight of a layer with its adapters added."""
    weight = base_linear(linear).weight
    for down, up in low_rank_factors(linear) or ():
        weight = weight + up @ down
    return weight


@lru_cache(maxsize=1)
def has_int8_products() -> bool:
    """Whether this CPU has the instructions, and oneDNN multiplies as it should.

    Without VNNI sums of two products may overflow 16 bits, and are slow where they do not.
    """
    linear = nn.Linear(48, 80)
    states = torch.linspace(-1, 1, 3 * 48).view(3, 48)
    product = Int8Product([linear])
    try:
        if not (torch.backends.mkldnn.is_available() and torch.cpu._is_vnni_supported()):
            return False
        product.pack()
        return torch.allclose(product(states), linear(states), atol=0.02)
    except (RuntimeError, NotImplementedError, AttributeError):  # the operators are not part of torch's public API
        return False
