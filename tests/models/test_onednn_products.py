"""Products by oneDNN are those of `linear`."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from lmgym.models import onednn_products
from lmgym.models.onednn_products import product


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    sizes=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    has_bias=st.booleans(),
    is_transposed=st.booleans(),
)
def test_results_are_those_of_linear(rows, sizes, has_bias, is_transposed):
    random = torch.Generator().manual_seed(0)
    states, weight = torch.randn(*rows, sizes[0], generator=random), torch.randn(sizes[1], sizes[0], generator=random)
    weight = weight.t().contiguous().t() if is_transposed else weight
    bias = torch.randn(sizes[1], generator=random) if has_bias else None
    torch.testing.assert_close(product(states, weight, bias), F.linear(states, weight, bias), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("there", [True, False])
def test_onednn_is_used_only_where_it_is_there_and_in_float32(monkeypatch, there):
    calls = []
    real = onednn_products.multiply
    monkeypatch.setattr(onednn_products, "multiply", lambda *given: calls.append(1) or real(*given))
    monkeypatch.setattr(onednn_products, "has_onednn", lambda: there)
    states, weight = torch.ones(2, 3), torch.ones(4, 3)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        assert torch.equal(product(states.to(dtype), weight), (states @ weight.t()).to(dtype))
    assert product(states[:0], weight).shape == (0, 4)
    assert len(calls) == there
