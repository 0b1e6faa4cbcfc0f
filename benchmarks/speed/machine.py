"""The speed of the machine's matrix products: an upper bound for all baselines."""

from __future__ import annotations

import time

import torch


def matrix_product_speed(dtype: torch.dtype, seconds: float = 3.0) -> float:
    """Floating-point operations per second: the best over shapes of a small language model, by MKL or by oneDNN."""
    best = 0.0
    shapes = [(2048, 576, 1536), (2048, 1536, 576), (1024, 1024, 1024), (2048, 2048, 2048)]
    for rows, inner, columns in shapes:
        left = torch.randn(rows, inner).to(dtype)
        right = torch.randn(columns, inner).to(dtype)
        packed = torch.ops.mkldnn._reorder_linear_weight(right, rows)
        until = time.perf_counter() + seconds / len(shapes)
        while (started := time.perf_counter()) < until:
            torch.nn.functional.linear(left, right)
            best = max(best, 2 * rows * inner * columns / (time.perf_counter() - started))
            started = time.perf_counter()
            torch.ops.mkldnn._linear_pointwise(left, packed, None, "none", [], "")
            best = max(best, 2 * rows * inner * columns / (time.perf_counter() - started))
    return best


def memory_bandwidth(seconds: float = 1.0) -> float:
    """Bytes per second that all cores read from memory: the best sum over 256 MB."""
    numbers = torch.ones(1 << 26)
    best, until = 0.0, time.perf_counter() + seconds
    while (started := time.perf_counter()) < until:
        numbers.sum()
        best = max(best, numbers.numel() * numbers.element_size() / (time.perf_counter() - started))
    return best
