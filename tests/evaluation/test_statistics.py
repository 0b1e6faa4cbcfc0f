"""The statistics against values known from elsewhere and against brute force."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmgym.evaluation.statistics import mcnemar, mean_interval, paired_permutation, pass_at_k, wilson


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [  # as R's binom.confint(method = "wilson") and statsmodels' proportion_confint give them
        (10, 100, 0.0552291, 0.1743657),
        (0, 20, 0.0, 0.1611252),
        (20, 20, 0.8388748, 1.0),
        (5, 10, 0.2365931, 0.7634069),
        (1, 1, 0.2065493, 1.0),
    ],
)
def test_wilson_intervals_are_those_of_the_textbooks(right, count, low, high):
    found = wilson(right / count, count)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-6)
    assert found.value == right / count
    assert found.count == count


def test_an_interval_of_nothing_is_everything():
    assert (wilson(0.0, 0).low, wilson(0.0, 0).high) == (0.0, 1.0)


def test_a_proportion_reads_with_its_interval():
    assert str(wilson(0.1, 100)) == "10.0% [5.5, 17.4]"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (5, 5, 1.0),
        (0, 6, 2 / 64),
        (1, 9, 2 * (1 + 10) / 1024),
        (9, 1, 2 * (1 + 10) / 1024),
        (3, 12, 2 * (1 + 15 + 105 + 455) / 2**15),
    ],
)
def test_mcnemar_is_the_two_sided_binomial_on_the_problems_that_differ(first, second, expected):
    assert mcnemar(first, second) == pytest.approx(expected)


def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample():
    for samples in range(1, 7):
        for right in range(samples + 1):
            marks = [True] * right + [False] * (samples - right)
            for k in range(1, samples + 1):
                subsets = list(itertools.combinations(marks, k))
                expected = sum(any(subset) for subset in subsets) / len(subsets)
                assert pass_at_k(samples, right, k) == pytest.approx(expected), (samples, right, k)


@given(st.integers(1, 2000), st.floats(0, 1))
def test_a_share_is_never_outside_its_own_interval(count, part):
    for share in (0.0, 1.0, round(part * count) / count):
        found = wilson(share, count)
        assert 0 <= found.low <= share <= found.high <= 1


def test_the_permutation_test_is_the_share_of_signs_that_go_as_far():
    first, second = [0.1, 0.5, 0.2, 0.9, 0.4, 0.3], [0.4, 0.4, 0.8, 0.9, 0.6, 0.7]
    differences = [b - a for a, b in zip(first, second, strict=True)]
    sums = [
        sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in itertools.product((1, -1), repeat=6)
    ]
    expected = sum(abs(total) >= abs(sum(differences)) - 1e-12 for total in sums) / len(sums)
    assert paired_permutation(first, second) == pytest.approx(expected)
    assert paired_permutation(second, first) == pytest.approx(expected)
    assert paired_permutation(first, first) == 1.0


def test_the_permutation_test_of_wins_and_losses_is_mcnemars():
    for wins, losses in ((9, 1), (14, 3), (10, 10)):
        first, second = [0.0] * wins + [1.0] * losses, [1.0] * wins + [0.0] * losses
        assert paired_permutation(first, second) == pytest.approx(mcnemar(losses, wins), abs=0.01)


def test_a_mean_has_the_normal_interval_of_its_sample():
    found = mean_interval([0.0, 1.0, 2.0, 3.0])
    half = 1.959963984540054 * (5 / 3) ** 0.5 / 2
    assert (found.value, found.low, found.high) == pytest.approx((1.5, 1.5 - half, 1.5 + half))
    assert str(mean_interval([0.5])) == "0.500 [0.500, 0.500]"
