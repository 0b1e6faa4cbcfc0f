"""Credit against brute force: what a page of loops gives, the vectorised functions must give too."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmgym.advantages import batch_baseline, discounted_returns, down_sampled, group_baseline, token_returns

NUMBERS = st.floats(-4, 4, width=32)
DISCOUNTS = st.sampled_from([0.0, 0.5, 0.9, 1.0])


@st.composite
def rewarded_episodes(draw):
    """Step rewards of episodes of different step counts, padded with 0, and their groups."""
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    rewards = [draw(st.lists(NUMBERS, min_size=count, max_size=count)) for count in counts]
    group = draw(st.lists(st.integers(0, 2), min_size=len(counts), max_size=len(counts)))
    return rewards, group


def padded(rewards: list[list[float]]) -> torch.Tensor:
    longest = max(map(len, rewards))
    return torch.tensor([row + [0.0] * (longest - len(row)) for row in rewards])


def returns_by_loops(rewards: list[list[float]], discount: float) -> list[list[float]]:
    return [
        [sum(discount ** (later - step) * row[later] for later in range(step, len(row))) for step in range(len(row))]
        for row in rewards
    ]


@given(rewarded_episodes(), DISCOUNTS)
@settings(max_examples=60, deadline=None)
def test_discounted_returns_equal_the_double_loop(case, discount):
    rewards, _ = case
    found = discounted_returns(padded(rewards), discount)
    for row, expected in zip(found.tolist(), returns_by_loops(rewards, discount), strict=True):
        assert row[: len(expected)] == pytest.approx(expected, abs=1e-4)


@given(rewarded_episodes(), DISCOUNTS)
@settings(max_examples=60, deadline=None)
def test_group_baseline_is_the_mean_of_the_group_from_the_same_step_on(case, discount):
    rewards, group = case
    returns = returns_by_loops(rewards, discount)
    counts = torch.tensor([len(row) for row in rewards])
    found = group_baseline(discounted_returns(padded(rewards), discount), counts, torch.tensor(group))
    for row, number in enumerate(group):
        members = [returns[other] for other in range(len(group)) if group[other] == number]
        for step in range(len(rewards[row])):
            mean = sum(member[min(step, len(member) - 1)] for member in members) / len(members)
            assert float(found[row, step]) == pytest.approx(mean, abs=1e-4)


@given(rewarded_episodes())
@settings(max_examples=60, deadline=None)
def test_with_one_reward_at_the_end_the_group_baseline_is_the_group_mean_at_every_step(case):
    rewards, group = case
    final = [row[-1] for row in rewards]
    ends = padded([[0.0] * (len(row) - 1) + row[-1:] for row in rewards])
    counts = torch.tensor([len(row) for row in rewards])
    found = group_baseline(discounted_returns(ends, 1.0), counts, torch.tensor(group))
    for row, number in enumerate(group):
        members = [final[other] for other in range(len(group)) if group[other] == number]
        expected = [sum(members) / len(members)] * len(rewards[row])
        assert found[row, : len(rewards[row])].tolist() == pytest.approx(expected, abs=1e-4)


@given(rewarded_episodes(), st.floats(-3, 3, width=32))
@settings(max_examples=60, deadline=None)
def test_a_constant_added_to_the_outcomes_of_one_group_changes_no_advantage(case, constant):
    rewards, group = case
    counts, groups = torch.tensor([len(row) for row in rewards]), torch.tensor(group)
    lifted = [[*row[:-1], row[-1] + constant * (number == 0)] for row, number in zip(rewards, group, strict=True)]
    advantages = []
    for version in (rewards, lifted):
        returns = discounted_returns(padded(version), 1.0)
        real = torch.arange(returns.shape[1])[None, :] < counts[:, None]
        advantages.append((returns - group_baseline(returns, counts, groups))[real])
    assert torch.allclose(advantages[0], advantages[1], atol=1e-4)


def test_group_baseline_keeps_the_precision_it_is_given():
    returns = torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64)
    found = group_baseline(returns, torch.ones(3, dtype=torch.long), torch.zeros(3, dtype=torch.long))
    assert found.dtype == torch.float64
    assert float(found[0, 0]) == 1 / 3


@given(rewarded_episodes(), DISCOUNTS)
@settings(max_examples=60, deadline=None)
def test_batch_baseline_is_the_mean_of_real_steps_only(case, discount):
    rewards, _ = case
    counts = torch.tensor([len(row) for row in rewards])
    flat = [value for row in returns_by_loops(rewards, discount) for value in row]
    found = batch_baseline(discounted_returns(padded(rewards), discount), counts)
    assert float(found) == pytest.approx(sum(flat) / len(flat), abs=1e-4)


@st.composite
def token_rows(draw):
    """Prompt, then steps of one or more tokens, with or without a reply before the next; padded with -1."""
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        row = [-1] * draw(st.integers(1, 3))
        for step in range(draw(st.integers(1, 4))):
            row += [step] * draw(st.integers(1, 3)) + [-1] * draw(st.integers(0, 2))
        rows.append(row)
    longest = max(map(len, rows))
    values = [[draw(NUMBERS) if step >= 0 else 0.0 for step in row] + [0.0] * (longest - len(row)) for row in rows]
    return [row + [-1] * (longest - len(row)) for row in rows], values


@given(token_rows(), DISCOUNTS)
@settings(max_examples=100, deadline=None)
def test_token_returns_sum_later_tokens_discounted_once_per_step_whatever_stands_in_between(case, discount):
    steps, values = case
    found = token_returns(torch.tensor(values), torch.tensor(steps), discount)
    for row, line in enumerate(steps):
        for token, step in enumerate(line):
            if step < 0:
                continue
            later = [place for place in range(token + 1, len(line)) if line[place] >= 0]
            expected = sum(discount ** (line[place] - step) * values[row][place] for place in later)
            assert float(found[row, token]) == pytest.approx(expected, abs=1e-4)


@given(st.lists(st.sampled_from([-2.0, -0.5, 0.0, 1.0, 3.0]), min_size=2, max_size=5), st.integers(2, 5))
@settings(max_examples=40, deadline=None)
def test_down_sampled_advantages_are_right_on_average_over_seeds(values, keep):
    """Seeds are independent of what an episode is: over all their orders each advantage has its mean."""
    advantages, group = torch.tensor(values)[:, None].repeat(1, 3), torch.full((len(values),), 1)
    orders = [torch.tensor(order) for order in itertools.permutations(range(len(values)))]
    found = torch.stack([down_sampled(advantages, group, keep, seed) for seed in orders])
    assert torch.allclose(found.mean(dim=0), advantages, atol=1e-5)
    kept = (found[..., 0] != 0).sum(dim=1)
    assert (kept == min(keep, sum(value != 0 for value in values))).all()


def test_down_sampling_keeps_both_signs_of_each_group():
    group = torch.tensor([0] * 8 + [1] * 8)
    advantages = torch.tensor([1.0] + [-1 / 7] * 7 + [1 / 7] * 7 + [-1.0])[:, None]
    found = down_sampled(advantages, group, 4, torch.arange(16))[:, 0]
    assert found[0] == 1.0
    assert found[15] == -1.0
    assert torch.allclose(found[1:8], torch.tensor([-1 / 3] * 3 + [0.0] * 4))
    assert torch.allclose(found[8:15], torch.tensor([1 / 3] * 3 + [0.0] * 4))
