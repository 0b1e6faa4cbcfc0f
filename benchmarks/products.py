"""GFLOPS of SmolLM2's matrix products by rows: `linear` (MKL), oneDNN, and oneDNN with packed weights.

python -m benchmarks.products

The matrices of a layer are repeated until they exceed the caches, as in a forward pass. Writes a Markdown table.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import lmgym  # isort: skip # noqa: F401 - before torch, whose threads it tells how to wait
import torch
from torch import Tensor

from lmgym.engines.torch.fused_decoder import PACKED_ROWS
from lmgym.models.onednn_products import multiply

ROWS = (1, 8, 64, 256, 1024)
SHAPES = {"q k v": (960, 576), "o": (576, 576), "gate up": (3072, 576), "down": (576, 1536), "head": (49_152, 576)}
"""Outputs and inputs."""
BEYOND_CACHE = 100e6
"""Bytes of weights that a measurement reads."""


def main() -> None:
    """Prints a line per matrix and way."""
    lines = ["| matrix | way | " + " | ".join(f"{rows} rows" for rows in ROWS) + " |", "|---|---|" + "---|" * len(ROWS)]
    for name, (outputs, inputs) in SHAPES.items():
        weights = [torch.randn(outputs, inputs) for _ in range(max(1, int(BEYOND_CACHE / (4 * outputs * inputs))))]
        packed = [torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS) for weight in weights]
        ways: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], list[Tensor]]] = {
            "linear": (torch.nn.functional.linear, weights),
            "oneDNN": (multiply, weights),
            "oneDNN, packed": (multiply, packed),
        }
        for way, (product, given) in ways.items():
            speeds = [2e-9 * rows * outputs * inputs / _seconds(product, rows, inputs, given) for rows in ROWS]
            lines.append(f"| {name} | {way} | " + " | ".join(f"{speed:.0f}" for speed in speeds) + " |")
    sys.stdout.write("\n".join(lines) + "\n")


def _seconds(product: Callable[[Tensor, Tensor], Tensor], rows: int, inputs: int, weights: list[Tensor]) -> float:
    """Of one product, the best of several passes over all weights."""
    states, best = torch.randn(rows, inputs), float("inf")
    for _ in range(5):
        started = time.perf_counter()
        for weight in weights:
            product(states, weight)
        best = min(best, (time.perf_counter() - started) / len(weights))
    return best


if __name__ == "__main__":
    main()
