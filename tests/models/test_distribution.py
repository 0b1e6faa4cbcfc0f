"""Temperature, top-k and top-p against a definition that looks at one id after the other."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lmgym.errors import UserError
from lmgym.models import distribution as module
from lmgym.models.distribution import FULL_SOFTMAX, Distribution

LOGITS = st.one_of(
    st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12),  # with ties
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=12),
)


def kept_by_definition(logits: list[float], temperature: float, top_k: int, top_p: float) -> tuple[set[int], float]:
    """The ids that are kept, and how close a cumulative probability came to top-p."""
    scaled = (torch.tensor(logits) / (temperature or 1.0)).tolist()
    order = sorted(range(len(scaled)), key=lambda identifier: -scaled[identifier])
    if 0 < top_k < len(order):
        order = [identifier for identifier in order if scaled[identifier] >= scaled[order[top_k - 1]]]
    if top_p == 1:
        return set(order), 1.0
    weights = [math.exp(scaled[identifier] - scaled[order[0]]) for identifier in order]
    masses = [mass / math.fsum(weights) for mass in accumulate(weights)]
    last = next((index for index, mass in enumerate(masses) if mass >= top_p), len(order) - 1)
    nearest = min(abs(mass - top_p) for mass in masses)
    return {identifier for identifier in order if scaled[identifier] >= scaled[order[last]]}, nearest


def kept(logits: list[float], distribution: Distribution) -> set[int]:
    return set(distribution.apply_(torch.tensor([logits]))[0].isfinite().nonzero()[:, 0].tolist())


@settings(max_examples=400, deadline=None)
@given(
    logits=LOGITS,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.integers(0, 14),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    candidates=st.sampled_from([1, 2, 5, 512]),
)
def test_the_most_likely_ids_are_kept_with_ties_of_the_last(logits, temperature, top_k, top_p, candidates):
    expected, nearest = kept_by_definition(logits, temperature, top_k, top_p)
    assume(nearest > 1e-9)  # else rounding decides on which side of top-p the mass falls
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TOP_P_CANDIDATES", candidates)
        assert kept(logits, Distribution(temperature, top_k, top_p)) == expected


def test_the_full_vocabulary_is_sorted_if_the_candidates_are_not_enough():
    logits = torch.zeros(2, 2000)
    logits[0] = -1e-3 * torch.arange(2000)
    logits[1, 7] = 20.0  # one row that needs few ids beside one that needs many
    left = Distribution(top_p=0.9).apply_(logits.clone()).isfinite()
    enough = int((logits[0].double().softmax(dim=0).cumsum(dim=0) < 0.9).sum()) + 1
    assert enough > module.TOP_P_CANDIDATES
    assert left[0].nonzero()[:, 0].tolist() == list(range(enough))
    assert left[1].nonzero()[:, 0].tolist() == [7]


def test_kept_logits_are_only_divided_by_the_temperature():
    logits = torch.tensor([[3.0, 1.0, 2.0, 0.0]])
    left = Distribution(temperature=2.0, top_k=3, top_p=0.8).apply_(logits.clone())
    assert left.tolist() == [[1.5, -math.inf, 1.0, -math.inf]]


def test_rows_are_independent():
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)) * torch.arange(6)[:, None]
    distribution = Distribution(0.7, top_k=20, top_p=0.8)
    together = distribution.apply_(logits.clone())
    assert together.isfinite().sum(dim=1).unique().numel() > 3
    for row in range(6):
        assert torch.equal(distribution.apply_(logits[row : row + 1].clone())[0], together[row])


@pytest.mark.parametrize("top_p", [0.5, 1.0])
def test_top_k_keeps_ties_and_may_exceed_the_vocabulary(top_p):
    assert kept([2.0, 1.0, 1.0, 1.0, 0.0], Distribution(top_k=2)) == {0, 1, 2, 3}
    assert kept([1.0] * 5, Distribution(top_k=1, top_p=top_p)) == set(range(5))
    assert kept([2.0, 1.0], Distribution(top_k=9)) == {0, 1}


def test_top_p_is_a_share_of_the_probability_left_by_top_k():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().tolist()
    assert kept(logits, Distribution(top_p=0.65)) == {0, 1}
    assert kept(logits, Distribution(top_k=2, top_p=0.56)) == {0}  # 0.4 of 0.7 is enough
    assert kept(logits, Distribution(top_k=2, top_p=0.58)) == {0, 1}


def test_the_temperature_is_applied_before_top_p():
    logits = torch.tensor([0.6, 0.3, 0.1]).log().tolist()
    assert kept(logits, Distribution(1.0, top_p=0.8)) == {0, 1}
    assert kept(logits, Distribution(0.25, top_p=0.8)) == {0}
    assert kept(logits, Distribution(4.0, top_p=0.8)) == {0, 1, 2}


@settings(max_examples=100, deadline=None)
@given(logits=LOGITS, top_k=st.integers(0, 4), top_p=st.floats(0.01, 1.0), data=st.data())
def test_an_id_to_keep_is_never_truncated_and_changes_no_other(logits, top_k, top_p, data):
    asked = data.draw(st.integers(0, len(logits) - 1))
    distribution = Distribution(top_k=top_k, top_p=top_p)
    left = distribution.apply_(torch.tensor([logits]), keep=torch.tensor([asked]))[0]
    assert left[asked] == torch.tensor(logits)[asked]
    assert set(left.isfinite().nonzero()[:, 0].tolist()) == kept(logits, distribution) | {asked}


def test_the_full_softmax_changes_nothing_and_zero_rows_work():
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    assert torch.equal(FULL_SOFTMAX.apply_(logits.clone()), logits)
    assert torch.equal(Distribution(0.0).apply_(logits.clone()), logits), "greedy is reported at temperature 1"
    assert not Distribution(0.5).is_truncated
    assert Distribution(top_k=1).is_truncated
    assert Distribution(top_p=0.99).is_truncated
    empty = torch.zeros(0, 20)
    assert Distribution(0.5, 3, 0.5).apply_(empty, keep=torch.zeros(0, dtype=torch.long)).shape == (0, 20)


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
def test_settings_out_of_range_are_refused_in_one_sentence(wrong, says):
    with pytest.raises(UserError, match=says) as caught:
        wrong.check()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "right", [FULL_SOFTMAX, Distribution(0.0), Distribution(5.0, 1, 1e-6), Distribution(top_k=10**6)]
)
def test_valid_settings_pass(right):
    right.check()
