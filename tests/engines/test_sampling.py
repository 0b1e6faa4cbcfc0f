"""Sampling draws exactly the softmax: a block of ids by one uniform number, an id within it by another."""

from itertools import product

import numpy as np
import pytest
import torch
from engine_checks import by_block, is_in_cell
from hypothesis import given, settings
from hypothesis import strategies as st

from lmgym.engines.sampling import BLOCK, choose_tokens, uniform_stream
from lmgym.models.distribution import FULL_SOFTMAX, Distribution

LARGEST_BELOW_ONE = float(np.nextafter(1.0, 0.0))
SIZES = [1, 2, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 17]
UNIFORM = st.one_of(st.floats(0, LARGEST_BELOW_ONE), st.sampled_from([0.0, 1e-12, 0.5, LARGEST_BELOW_ONE]))


def draw(
    logits: torch.Tensor, distribution: Distribution, pairs: torch.Tensor | list[tuple[float, float]]
) -> tuple[torch.Tensor, torch.Tensor]:
    uniforms = torch.as_tensor(pairs, dtype=torch.float64)
    return choose_tokens(logits.repeat(len(uniforms), 1), distribution, uniforms)


def even_grid(blocks: int, places: int) -> torch.Tensor:
    """Pairs [blocks · places, 2] in the middles of the cells of an even grid, the second number running fastest."""
    return torch.tensor(list(product((np.arange(blocks) + 0.5) / blocks, (np.arange(places) + 0.5) / places)))


@settings(max_examples=150, deadline=None)
@given(
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 2**31),
    spread=st.floats(0.0, 20.0),
    temperature=st.floats(0.1, 5.0),
    pair=st.tuples(UNIFORM, UNIFORM),
)
def test_the_cell_of_the_drawn_id_contains_both_numbers(size, seed, spread, temperature, pair):
    logits = spread * torch.randn(1, size, generator=torch.Generator().manual_seed(seed))
    chosen, logprobs = draw(logits, Distribution(temperature), [pair])
    exact = (logits.double() / temperature).log_softmax(dim=-1)[0]
    assert is_in_cell(exact.exp(), int(chosen), pair)
    assert float(logprobs) == pytest.approx(float(exact[int(chosen)]), abs=1e-4, rel=1e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_an_even_grid_of_uniforms_reproduces_the_distribution(size, temperature):
    count = 120
    logits = 2 * torch.randn(1, size, generator=torch.Generator().manual_seed(size))
    chosen, _ = draw(logits, Distribution(temperature), even_grid(count, count))
    frequencies = torch.bincount(chosen, minlength=size).double() / count**2
    exact = (logits[0].double() / temperature).softmax(dim=0)
    blocks, within = by_block(exact)
    # An interval of length x holds x of the points of an even row, up to one.
    off_by_one = (blocks[:, None] + 1.01 / count) * (within + 1.01 / count) - blocks[:, None] * within
    assert ((frequencies - exact).abs() <= off_by_one.flatten()[:size]).all()
    grid = chosen.view(count, count)
    assert (grid.diff(dim=1) >= 0).all(), "within a block, inversion is monotone in the second number"
    assert ((grid // BLOCK).diff(dim=0) >= 0).all(), "the block is monotone in the first number"
    assert (grid // BLOCK == grid[:, :1] // BLOCK).all(), "and does not depend on the second"


def test_temperature_zero_takes_the_likeliest_id_and_reports_it_at_temperature_one():
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    uniforms = torch.tensor([[0.0, 0.9], [0.3, 0.0], [0.9, 0.3], [LARGEST_BELOW_ONE] * 2]).double()
    chosen, logprobs = choose_tokens(logits.clone(), Distribution(0.0), uniforms)
    assert chosen.tolist() == logits.argmax(dim=-1).tolist()
    torch.testing.assert_close(logprobs, logits.log_softmax(dim=-1).amax(dim=-1), atol=1e-5, rtol=0)


@settings(max_examples=150, deadline=None)
@given(
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 2**31),
    kept=st.integers(1, 4),
    uniforms=st.lists(st.floats(0, LARGEST_BELOW_ONE), max_size=5),
)
def test_an_id_of_no_probability_is_never_drawn(size, seed, kept, uniforms):
    generator = torch.Generator().manual_seed(seed)
    possible = torch.randperm(size, generator=generator)[:kept]
    logits = torch.full((1, size), float("-inf"))
    logits[0, possible] = torch.randn(len(possible), generator=generator)
    grid = [0.0, 5e-324, 1e-17, 0.5, 1 - 1e-9, LARGEST_BELOW_ONE, *uniforms]
    chosen, logprobs = draw(logits, FULL_SOFTMAX, list(product(grid, grid)))
    assert set(chosen.tolist()) <= set(possible.tolist())
    assert logprobs.isfinite().all()


def test_uniforms_on_the_edge_of_a_block_go_to_a_possible_neighbour():
    logits = torch.zeros(1, 2 * BLOCK)
    logits[0, BLOCK - 10 : BLOCK + 10] = float("-inf")
    middle = [float(np.nextafter(0.5, 0)), 0.5, float(np.nextafter(0.5, 1))]
    chosen, _ = draw(logits, FULL_SOFTMAX, list(product(middle, [0.0, LARGEST_BELOW_ONE])))
    assert chosen.tolist() == [0, BLOCK - 11, *[BLOCK + 10, 2 * BLOCK - 1] * 2]


def test_a_long_tail_of_rare_ids_keeps_its_share():
    # One id with half of everything, 49,151 with the other half: float32 sums in a row would lose them.
    size = 49_152
    logits = torch.zeros(1, size)
    logits[0, 0] = float(np.log(size - 1))
    chosen, _ = draw(logits, FULL_SOFTMAX, even_grid(40, 10))
    assert int((chosen == 0).sum()) == 200
    tail = chosen[chosen > 0].double()
    assert float(tail.mean()) == pytest.approx(size / 2, rel=1e-2)


def test_rounding_of_a_likely_id_moves_no_draw_in_the_tail():
    # An id of the tail is a hundred-thousandth wide: one number for both levels would draw some 50 others.
    size, count = 49_152, 1000
    logits = torch.zeros(1, size)
    logits[0, 0] = float(np.log(size - 1))
    rounded = logits.clone()
    rounded[0, 0] += 2e-6
    pairs = torch.from_numpy(uniform_stream(1).random((count, 2)))
    chosen, nearly = draw(logits, FULL_SOFTMAX, pairs)[0], draw(rounded, FULL_SOFTMAX, pairs)[0]
    assert int((chosen > 0).sum()) == pytest.approx(count / 2, abs=60)
    assert chosen.tolist() == nearly.tolist()


@settings(max_examples=150, deadline=None)
@given(
    size=st.sampled_from([5, BLOCK, 2 * BLOCK + 17]),
    seed=st.integers(0, 2**31),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.05, 1.0),
    pairs=st.lists(st.tuples(UNIFORM, UNIFORM), min_size=1, max_size=8),
)
def test_of_a_cut_distribution_only_kept_ids_are_drawn_with_the_log_probs_of_what_is_left(
    size, seed, temperature, top_k, top_p, pairs
):
    logits = 3 * torch.randn(1, size, generator=torch.Generator().manual_seed(seed))
    distribution = Distribution(temperature, top_k, top_p)
    left = distribution.apply_(logits.clone())[0].log_softmax(dim=0)
    chosen, logprobs = draw(logits, distribution, pairs)
    assert left[chosen].isfinite().all()
    torch.testing.assert_close(logprobs, left[chosen], atol=1e-5, rtol=0)


def test_an_even_grid_draws_every_kept_id_as_often_as_it_is_likely_among_them():
    logits = torch.randn(1, 3 * BLOCK, generator=torch.Generator().manual_seed(2))
    chosen, logprobs = draw(logits, Distribution(top_k=10), even_grid(100, 100))
    kept = logits[0].topk(10).indices
    assert sorted(set(chosen.tolist())) == sorted(kept.tolist())
    shares = logits[0, kept].softmax(dim=0)
    for identifier, share in zip(kept.tolist(), shares.tolist(), strict=True):
        assert float((chosen == identifier).double().mean()) == pytest.approx(share, abs=0.02)
        assert logprobs[chosen == identifier].exp().tolist() == pytest.approx(
            [share] * int((chosen == identifier).sum())
        )


def test_a_seed_is_a_stream_of_its_own():
    first, again, other = (uniform_stream(seed).random(50) for seed in (3, 3, 4))
    assert (first == again).all()
    assert (first != other).all()
