"""Tree attention in blocks equals attention with the full ancestor mask, in both directions and at every length."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from conftest import tiny_model
from hand_made import ragged_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmgym.models import block_attention
from lmgym.models.flex_tree_attention import FlexTreeAttention, flex_works
from lmgym.models.prefix_tree import build_prefix_tree
from lmgym.models.tree_attention import Chain, TreeAttention, find_chains

KV_HEADS, HEADS, SIZE, SCALING = 2, 6, 4, 0.5


@st.composite
def trees(draw):
    """`subtree_end` of a few episodes over two ids, so that they often share prefixes."""
    ids = st.lists(st.integers(1, 2), min_size=1, max_size=8)
    rows = [(row, [0] * len(row)) for row in draw(st.lists(ids, min_size=1, max_size=6))]
    tokens, _, lengths = ragged_rows(rows)
    return build_prefix_tree(tokens, lengths, 0).subtree_end


def visible_keys(subtree_end: Tensor) -> Tensor:
    """[queries, keys] the ancestors of each node, and itself."""
    nodes = torch.arange(len(subtree_end))
    return (nodes <= nodes[:, None]) & (nodes[:, None] <= subtree_end)


def tensors(nodes: int, prefix: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
    """Random query, key, value, prefix key and prefix value; without a prefix the first three."""
    random = torch.Generator().manual_seed(seed)
    shapes = [(1, HEADS, nodes, SIZE), *[(1, KV_HEADS, nodes, SIZE)] * 2]
    shapes += [(1, KV_HEADS, prefix, SIZE)] * 2 if prefix else []
    return [torch.randn(shape, generator=random).to(dtype).requires_grad_() for shape in shapes]


def masked(subtree_end: Tensor, query: Tensor, key: Tensor, value: Tensor, *prefix: Tensor) -> Tensor:
    """The definition: one softmax over all keys, with the ancestor mask, in float64."""
    hidden = ~visible_keys(subtree_end)
    if prefix:
        key, value = torch.cat([prefix[0], key], dim=2), torch.cat([prefix[1], value], dim=2)
        hidden = torch.cat([hidden.new_zeros(len(hidden), prefix[0].shape[2]), hidden], dim=1)
    query, key, value = query.double(), key.double(), value.double()
    scores = SCALING * query @ key.repeat_interleave(HEADS // KV_HEADS, dim=1).transpose(2, 3)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return weights @ value.repeat_interleave(HEADS // KV_HEADS, dim=1)


def blocked(subtree_end: Tensor, query: Tensor, key: Tensor, value: Tensor, *prefix: Tensor) -> Tensor:
    backend = TreeAttention(list(prefix[:1]), list(prefix[1:]), subtree_end)
    return backend.attend(0, query, key, value, SCALING)


def flexible(subtree_end: Tensor, query: Tensor, key: Tensor, value: Tensor, *prefix: Tensor) -> Tensor:
    backend = FlexTreeAttention(list(prefix[:1]), list(prefix[1:]), subtree_end)
    return backend.attend(0, query, key, value, SCALING)


def check(
    subtree_end: Tensor,
    prefix: int,
    dtype: torch.dtype = torch.float32,
    tolerance: float = 2e-5,
    attention: Callable[..., Tensor] = blocked,
) -> None:
    mine, exact = (tensors(len(subtree_end), prefix, dtype) for _ in range(2))
    found, expected = attention(subtree_end, *mine), masked(subtree_end, *exact)
    assert found.dtype == dtype
    assert (found - expected).abs().max() <= tolerance
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    found.backward(upstream.to(dtype))
    expected.backward(upstream.double())
    for one, other in zip(mine, exact, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert (one.grad - other.grad).abs().max() <= tolerance * max(1.0, float(other.grad.abs().max()))


@pytest.fixture(params=["kernel", "portable"])
def implementation(request, monkeypatch):
    """The kernel of this device, and the products that other devices use."""
    if request.param == "portable":
        monkeypatch.setattr("lmgym.models.tree_attention.attend_block", block_attention.portable_block)
        monkeypatch.setattr(
            "lmgym.models.tree_attention.attend_block_backward", block_attention.portable_block_backward
        )
        monkeypatch.setattr(block_attention, "QUERIES", 3)


def test_the_example_of_the_class_docstring():
    chains = find_chains(torch.tensor([6, 6, 5, 4, 4, 5, 6]))
    assert chains == [Chain(0, 2, 7), Chain(2, 3, 6), Chain(3, 5, 5), Chain(5, 6, 6), Chain(6, 7, 7)]


@settings(max_examples=200, deadline=None)
@given(subtree_end=trees())
def test_the_blocks_cover_every_visible_key_once_and_no_other(subtree_end):
    covered = torch.zeros(len(subtree_end), len(subtree_end), dtype=torch.long)
    for chain in find_chains(subtree_end):
        covered[chain.nodes, chain.nodes] += 1
        covered[chain.nodes, chain.nodes].tril_()
        covered[chain.descendants, chain.nodes] += 1
    assert torch.equal(covered, visible_keys(subtree_end).long())


@settings(max_examples=100, deadline=None)
@given(subtree_end=trees(), prefix=st.integers(0, 3))
def test_output_and_gradients_are_those_of_the_full_mask(subtree_end, prefix):
    check(subtree_end, prefix)


def long_tree(prompt: int, lengths: list[int], groups: int = 1) -> Tensor:
    """Groups of episodes that share a prompt and nothing behind it."""
    ids = torch.arange(sum(lengths) * groups + prompt * groups).tolist()
    rows = []
    for _ in range(groups):
        shared, ids = ids[:prompt], ids[prompt:]
        for length in lengths:
            rows.append(([*shared, *ids[:length]], [0] * (prompt + length)))
            ids = ids[length:]
    tokens, _, real = ragged_rows(rows)
    return build_prefix_tree(tokens, real, 0).subtree_end


LONG = {
    "one chain": lambda: long_tree(0, [1500]),
    "a group": lambda: long_tree(700, [300, 1, 250]),
    "groups": lambda: long_tree(130, [70, 140, 33], groups=3),
    "episodes without a common prompt": lambda: long_tree(0, [513, 255, 64]),
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("prefix", [0, 300])
def test_long_trees(implementation, name, prefix):
    check(LONG[name](), prefix, tolerance=1e-4)


@pytest.mark.parametrize("name", LONG)
def test_long_trees_in_bfloat16(implementation, name):
    check(LONG[name](), 300, torch.bfloat16, tolerance=0.04)


@pytest.fixture
def flex_backward_on_cpu(monkeypatch):
    """PyTorch refuses it, because only its slow, uncompiled form has one; it computes the same."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda query, key, value: None)


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("prefix", [0, 300])
def test_long_trees_in_one_kernel(flex_backward_on_cpu, name, prefix):
    check(LONG[name](), prefix, tolerance=1e-4, attention=flexible)


def test_every_small_tree_in_one_kernel(flex_backward_on_cpu):
    @settings(max_examples=20, deadline=None)
    @given(subtree_end=trees(), prefix=st.integers(0, 3))
    def same(subtree_end, prefix):
        check(subtree_end, prefix, attention=flexible)

    same()


def test_the_kernel_is_tried_before_it_is_used(flex_backward_on_cpu, monkeypatch):
    assert flex_works(tiny_model())
    monkeypatch.setattr("lmgym.models.flex_tree_attention._kernel", lambda device: lambda q, k, v, **_: 1.1 * q)
    assert not flex_works(tiny_model())


def test_a_kernel_that_cannot_be_compiled_is_not_used(capsys):
    assert not flex_works(tiny_model())  # PyTorch has no gradient of it on a CPU
    assert "FlexAttention cannot be used (NotImplementedError" in capsys.readouterr().err


def test_memory_kept_for_the_backward_pass_is_linear_in_the_nodes():
    def kept(subtree_end: Tensor) -> int:
        saved: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            blocked(subtree_end, *tensors(len(subtree_end), 0))
        return sum(saved.values())

    for one, double in [
        (long_tree(0, [500]), long_tree(0, [1000])),
        (long_tree(400, [100] * 4), long_tree(400, [100] * 4, groups=2)),
    ]:
        assert kept(double) == 2 * kept(one)
