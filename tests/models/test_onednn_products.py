"""Products by oneDNN are those of `linear`, in both directions, and replace nothing else."""

from __future__ import annotations

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from lmgym.models import onednn_products
from lmgym.models.onednn_products import OneDnnProducts


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    sizes=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    has_bias=st.booleans(),
    frozen=st.booleans(),
)
def test_results_and_gradients_are_those_of_linear(rows, sizes, has_bias, frozen):
    random = torch.Generator().manual_seed(0)
    found = []
    for mode in (contextlib.nullcontext(), OneDnnProducts()):
        states = torch.randn(*rows, sizes[0], generator=random.manual_seed(1), requires_grad=True)
        weight = torch.randn(sizes[1], sizes[0], generator=random, requires_grad=not frozen)
        bias = torch.randn(sizes[1], generator=random, requires_grad=True) if has_bias else None
        with mode:
            product = F.linear(states, weight, bias)
        product.square().sum().backward()
        found.append([product.detach(), states.grad, weight.grad, None if bias is None else bias.grad])
    for mine, exact in zip(*found, strict=True):
        assert (mine is None) == (exact is None)
        if exact is not None:
            torch.testing.assert_close(mine, exact, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("there", [True, False])
def test_onednn_is_used_only_where_it_is_there(monkeypatch, there):
    calls = []
    real = onednn_products.multiply
    monkeypatch.setattr(onednn_products, "multiply", lambda *given: calls.append(1) or real(*given))
    monkeypatch.setattr(onednn_products, "has_onednn", lambda: there)
    states, weight = torch.ones(2, 3), torch.ones(4, 3)
    with OneDnnProducts():
        assert torch.equal(F.linear(states, weight), states @ weight.t())
        F.linear(states.double(), weight.double())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            F.linear(states[:, :0], weight[:, :0])
    assert len(calls) == there
