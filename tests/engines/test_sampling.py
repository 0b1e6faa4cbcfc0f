"""Sampling draws exactly the softmax: by inversion, at the row's own temperature."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmgym.engines.sampling import BLOCK, choose_tokens, uniform_stream

LARGEST_BELOW_ONE = float(np.nextafter(1.0, 0.0))
SIZES = [1, 2, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 17]


def draw(logits: torch.Tensor, temperature: float, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = logits.expand(len(uniforms), -1)
    return choose_tokens(rows, torch.full((len(uniforms),), temperature), uniforms)


@settings(max_examples=150, deadline=None)
@given(
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 2**31),
    spread=st.floats(0.0, 20.0),
    temperature=st.floats(0.1, 5.0),
    uniform=st.one_of(st.floats(0, LARGEST_BELOW_ONE), st.sampled_from([0.0, 1e-12, 0.5, LARGEST_BELOW_ONE])),
)
def test_a_draw_inverts_the_cumulative_softmax(size, seed, spread, temperature, uniform):
    logits = spread * torch.randn(1, size, generator=torch.Generator().manual_seed(seed))
    chosen, logprobs = draw(logits, temperature, torch.tensor([uniform], dtype=torch.float64))
    temperature = float(torch.tensor(temperature))  # choose_tokens takes it in float32
    exact = (logits.double() / temperature).log_softmax(dim=-1)[0]
    ends = exact.exp().cumsum(dim=0)
    index = int(chosen)
    before = float(ends[index - 1]) if index else 0.0
    assert before - 1e-6 <= uniform <= float(ends[index]) + 1e-6
    assert float(logprobs) == pytest.approx(float(exact[index]), abs=1e-4)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_an_even_grid_of_uniforms_reproduces_the_distribution(size, temperature):
    count = 20_000
    logits = 2 * torch.randn(1, size, generator=torch.Generator().manual_seed(size))
    uniforms = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    chosen, _ = draw(logits, temperature, uniforms)
    frequencies = torch.bincount(chosen, minlength=size).double() / count
    assert (frequencies - (logits[0].double() / temperature).softmax(dim=0)).abs().max() <= 1.01 / count
    assert (chosen.diff() >= 0).all(), "inversion is monotone in the uniform number"


def test_temperature_zero_takes_the_likeliest_id_and_reports_it_at_temperature_one():
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    chosen, logprobs = choose_tokens(logits, torch.zeros(4), torch.tensor([0.0, 0.3, 0.9, LARGEST_BELOW_ONE]).double())
    assert chosen.tolist() == logits.argmax(dim=-1).tolist()
    torch.testing.assert_close(logprobs, logits.log_softmax(dim=-1).amax(dim=-1), atol=1e-5, rtol=0)


def test_every_row_has_its_own_temperature():
    logits = torch.randn(1, 200, generator=torch.Generator().manual_seed(1)).expand(4, -1)
    temperatures = torch.tensor([0.0, 0.5, 1.0, 2.0])
    uniforms = torch.full((4,), 0.7, dtype=torch.float64)
    together = choose_tokens(logits, temperatures, uniforms)
    for row in range(4):
        alone = choose_tokens(logits[row : row + 1], temperatures[row : row + 1], uniforms[row : row + 1])
        assert (int(alone[0]), float(alone[1])) == (int(together[0][row]), float(together[1][row]))
    expected = (logits / temperatures.clamp(min=1e-9)[:, None]).log_softmax(dim=-1)
    expected[0] = logits[0].log_softmax(dim=-1)
    torch.testing.assert_close(together[1], expected.gather(1, together[0][:, None])[:, 0], atol=1e-5, rtol=0)


@settings(max_examples=150, deadline=None)
@given(
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 2**31),
    kept=st.integers(1, 4),
    uniforms=st.lists(st.floats(0, LARGEST_BELOW_ONE), max_size=20),
)
def test_an_id_of_no_probability_is_never_drawn(size, seed, kept, uniforms):
    generator = torch.Generator().manual_seed(seed)
    possible = torch.randperm(size, generator=generator)[:kept]
    logits = torch.full((1, size), float("-inf"))
    logits[0, possible] = torch.randn(len(possible), generator=generator)
    grid = torch.tensor([0.0, 5e-324, 1e-17, 0.5, 1 - 1e-9, LARGEST_BELOW_ONE, *uniforms], dtype=torch.float64)
    chosen, logprobs = draw(logits, 1.0, grid)
    assert set(chosen.tolist()) <= set(possible.tolist())
    assert logprobs.isfinite().all()


def test_uniforms_on_the_edge_of_a_block_go_to_a_possible_neighbour():
    logits = torch.zeros(1, 2 * BLOCK)
    logits[0, BLOCK - 10 : BLOCK + 10] = float("-inf")
    middle = torch.tensor([np.nextafter(0.5, 0), 0.5, np.nextafter(0.5, 1)], dtype=torch.float64)
    chosen, _ = draw(logits, 1.0, middle)
    assert chosen.tolist() == [BLOCK - 11, BLOCK + 10, BLOCK + 10]


def test_a_long_tail_of_rare_ids_keeps_its_share():
    # One id with half of everything, 49,151 with the other half: float32 sums in a row would lose them.
    size = 49_152
    logits = torch.zeros(1, size)
    logits[0, 0] = float(np.log(size - 1))
    count = 400
    chosen, _ = draw(logits, 1.0, (torch.arange(count, dtype=torch.float64) + 0.5) / count)
    assert int((chosen == 0).sum()) == pytest.approx(count / 2, abs=2)
    rest = chosen[chosen > 0].double()
    assert float(rest.mean()) == pytest.approx(size / 2, rel=1e-2)


def test_a_seed_is_a_stream_of_its_own():
    first, again, other = (uniform_stream(seed).random(50) for seed in (3, 3, 4))
    assert (first == again).all()
    assert (first != other).all()
