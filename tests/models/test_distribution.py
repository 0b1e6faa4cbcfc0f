"""What is cut away, and what is left, against a definition that looks at one id after the other."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lmgym.errors import UserError
from lmgym.models import distribution
from lmgym.models.distribution import WHOLE, Distribution

LOGITS = st.one_of(
    st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12),  # with ties
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=12),
)


def kept_by_definition(logits: list[float], temperature: float, top_k: int, top_p: float) -> tuple[set[int], float]:
    """The ids that are left, likeliest first until there is enough, and how near the mass came to a tie with top-p."""
    scaled = (torch.tensor(logits) / (temperature or 1.0)).tolist()
    order = sorted(range(len(scaled)), key=lambda identifier: -scaled[identifier])
    if 0 < top_k < len(order):
        order = [identifier for identifier in order if scaled[identifier] >= scaled[order[top_k - 1]]]
    if top_p == 1:
        return set(order), 1.0
    weights = [math.exp(scaled[identifier] - scaled[order[0]]) for identifier in order]
    masses = [mass / math.fsum(weights) for mass in accumulate(weights)]
    last = next((place for place, mass in enumerate(masses) if mass >= top_p), len(order) - 1)
    nearest = min(abs(mass - top_p) for mass in masses)
    return {identifier for identifier in order if scaled[identifier] >= scaled[order[last]]}, nearest


def kept(logits: list[float], chosen: Distribution) -> set[int]:
    return set(chosen.apply(torch.tensor([logits]))[0].isfinite().nonzero()[:, 0].tolist())


@settings(max_examples=400, deadline=None)
@given(
    logits=LOGITS,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.integers(0, 14),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    likeliest=st.sampled_from([1, 2, 5, 512]),
)
def test_the_likeliest_ids_are_kept_until_there_is_enough_and_ties_with_the_last(
    logits, temperature, top_k, top_p, likeliest
):
    expected, nearest = kept_by_definition(logits, temperature, top_k, top_p)
    assume(nearest > 1e-9)  # else rounding decides on which side of top-p the mass falls
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distribution, "LIKELIEST", likeliest)
        assert kept(logits, Distribution(temperature, top_k, top_p)) == expected


def test_a_large_flat_vocabulary_is_sorted_as_a_whole():
    logits = torch.zeros(2, 2000)
    logits[0] = -1e-3 * torch.arange(2000)
    logits[1, 7] = 20.0  # one row that needs few ids beside one that needs many
    left = Distribution(top_p=0.9).apply(logits.clone()).isfinite()
    enough = int((logits[0].double().softmax(dim=0).cumsum(dim=0) < 0.9).sum()) + 1
    assert enough > distribution.LIKELIEST
    assert left[0].nonzero()[:, 0].tolist() == list(range(enough))
    assert left[1].nonzero()[:, 0].tolist() == [7]


def test_what_is_left_keeps_its_proportions():
    logits = torch.tensor([[3.0, 1.0, 2.0, 0.0]])
    left = Distribution(temperature=2.0, top_k=3, top_p=0.8).apply(logits.clone())
    assert left.tolist() == [[1.5, -math.inf, 1.0, -math.inf]]


def test_rows_are_cut_one_by_one():
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)) * torch.arange(6)[:, None]
    chosen = Distribution(0.7, top_k=20, top_p=0.8)
    together = chosen.apply(logits.clone())
    assert together.isfinite().sum(dim=1).unique().numel() > 3
    for row in range(6):
        assert torch.equal(chosen.apply(logits[row : row + 1].clone())[0], together[row])


@pytest.mark.parametrize("top_p", [0.5, 1.0])
def test_top_k_ties_with_the_last_kept_are_kept_and_more_than_there_are_is_all(top_p):
    assert kept([2.0, 1.0, 1.0, 1.0, 0.0], Distribution(top_k=2)) == {0, 1, 2, 3}
    assert kept([1.0] * 5, Distribution(top_k=1, top_p=top_p)) == set(range(5))
    assert kept([2.0, 1.0], Distribution(top_k=9)) == {0, 1}


def test_top_p_is_a_share_of_what_top_k_left():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().tolist()
    assert kept(logits, Distribution(top_p=0.65)) == {0, 1}
    assert kept(logits, Distribution(top_k=2, top_p=0.56)) == {0}  # 0.4 of 0.7 is enough
    assert kept(logits, Distribution(top_k=2, top_p=0.58)) == {0, 1}


def test_the_temperature_comes_before_the_cuts():
    logits = torch.tensor([0.6, 0.3, 0.1]).log().tolist()
    assert kept(logits, Distribution(1.0, top_p=0.8)) == {0, 1}
    assert kept(logits, Distribution(0.25, top_p=0.8)) == {0}
    assert kept(logits, Distribution(4.0, top_p=0.8)) == {0, 1, 2}


@settings(max_examples=100, deadline=None)
@given(logits=LOGITS, top_k=st.integers(0, 4), top_p=st.floats(0.01, 1.0), data=st.data())
def test_an_id_that_must_stay_is_never_cut_and_saves_no_other(logits, top_k, top_p, data):
    asked = data.draw(st.integers(0, len(logits) - 1))
    chosen = Distribution(top_k=top_k, top_p=top_p)
    left = chosen.apply(torch.tensor([logits]), keep=torch.tensor([asked]))[0]
    assert left[asked] == torch.tensor(logits)[asked]
    assert set(left.isfinite().nonzero()[:, 0].tolist()) == kept(logits, chosen) | {asked}


def test_the_whole_distribution_is_left_as_it_is_and_no_rows_are_no_rows():
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    assert torch.equal(WHOLE.apply(logits.clone()), logits)
    assert torch.equal(Distribution(0.0).apply(logits.clone()), logits), "greedy is reported at temperature 1"
    assert not Distribution(0.5).is_cut
    assert Distribution(top_k=1).is_cut
    assert Distribution(top_p=0.99).is_cut
    empty = torch.zeros(0, 20)
    assert Distribution(0.5, 3, 0.5).apply(empty, keep=torch.zeros(0, dtype=torch.long)).shape == (0, 20)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (Distribution(temperature=-0.1), "temperature is -0.1"),
        (Distribution(temperature=math.inf), "temperature is inf"),
        (Distribution(temperature=math.nan), "temperature is nan"),
        (Distribution(top_k=-1), "top_k is -1"),
        (Distribution(top_p=0.0), "top_p 0.0"),
        (Distribution(top_p=-0.5), "top_p -0.5"),
        (Distribution(top_p=1.01), "top_p 1.01"),
        (Distribution(top_p=math.nan), "top_p nan"),
    ],
)
def test_what_is_no_distribution_is_refused_in_one_sentence(wrong, says):
    with pytest.raises(UserError, match=says) as caught:
        wrong.check()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("right", [WHOLE, Distribution(0.0), Distribution(5.0, 1, 1e-6), Distribution(top_k=10**6)])
def test_what_is_one_is_not(right):
    right.check()
