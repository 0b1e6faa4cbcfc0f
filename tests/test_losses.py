"""Objectives against the truth: a tabular policy so small that every sequence can be counted out, in float64."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tabular import bare_scores, make_algorithm
from torch import Tensor

from lmgym.advantages import kl_to_go, undiscounted_returns
from lmgym.learning.batch import Batch
from lmgym.losses import (
    importance_weights,
    kl_estimate,
    kl_penalty,
    masked_max,
    masked_mean,
    per_constant,
    per_episode,
    per_token,
    policy_gradient,
)

VOCABULARY, LENGTH = 3, 3
SEQUENCES = torch.tensor(list(itertools.product(range(VOCABULARY), repeat=LENGTH)))
PREFIXES = {
    prefix: i for i, prefix in enumerate(p for n in range(LENGTH) for p in itertools.product(range(3), repeat=n))
}
ROWS = torch.tensor([[PREFIXES[tuple(sequence[:t].tolist())] for t in range(LENGTH)] for sequence in SEQUENCES])
ESTIMATORS: tuple[Literal["k1", "k2", "k3"], ...] = ("k1", "k2", "k3")


def table(seed: int) -> Tensor:
    """Logits of every next token after every prefix."""
    return torch.randn(len(PREFIXES), VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def token_logprobs(logits: Tensor) -> Tensor:
    """The log-probability of each token of each sequence [27, 3]."""
    return logits.log_softmax(-1)[ROWS, SEQUENCES]


def probabilities(logits: Tensor) -> Tensor:
    return token_logprobs(logits).sum(1).exp()


def gradient(function) -> Tensor:
    """The gradient of a function of the policy's logits, at one table of them."""
    logits = table(0).requires_grad_()
    return torch.autograd.grad(function(logits), logits)[0]


def expected(values_of_logprobs):
    """The gradient a learner gets on average: sequences are drawn, and only the loss is differentiated."""

    def surrogate(logits: Tensor) -> Tensor:
        logprobs = token_logprobs(logits)
        return (probabilities(logits).detach() * values_of_logprobs(logprobs).sum(1)).sum()

    return gradient(surrogate)


REWARD = torch.randn(len(SEQUENCES), dtype=torch.float64, generator=torch.Generator().manual_seed(7))
BEHAVIOUR = token_logprobs(table(0))
REFERENCE = token_logprobs(table(1))


def kl_of_states(logits: Tensor, other_way: bool = False) -> Tensor:
    """The sum over t of the KL of the next token, with the distribution over prefixes held fixed."""
    p, q = logits.log_softmax(-1), table(1).log_softmax(-1)
    each = (q.exp() * (q - p)).sum(-1) if other_way else (p.exp() * (p - q)).sum(-1)
    return (probabilities(logits).detach()[:, None] * each[ROWS]).sum()


def close(left: Tensor, right: Tensor) -> bool:
    return torch.allclose(left, right, atol=1e-10, rtol=1e-8)


def test_policy_gradient_is_on_average_the_gradient_of_the_expected_reward():
    exact = gradient(lambda logits: (probabilities(logits) * REWARD).sum())
    assert exact.abs().max() > 0.01
    assert close(-expected(lambda logprobs: policy_gradient(logprobs, REWARD[:, None])), exact)


def test_a_baseline_that_does_not_see_the_token_changes_nothing_on_average():
    exact = gradient(lambda logits: (probabilities(logits) * REWARD).sum())
    for_each_prefix = torch.randn(len(PREFIXES), dtype=torch.float64, generator=torch.Generator().manual_seed(3))[ROWS]
    for baseline in (torch.full_like(BEHAVIOUR, 5.0), for_each_prefix):
        assert close(-expected(lambda logprobs, b=baseline: policy_gradient(logprobs, REWARD[:, None] - b)), exact)
    sees_the_token = SEQUENCES.double()
    assert not close(-expected(lambda logprobs: policy_gradient(logprobs, REWARD[:, None] - sees_the_token)), exact)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kl_penalty_has_the_gradient_of_the_kl_and_the_value_of_its_estimate(estimator):
    exact = gradient(kl_of_states)
    assert close(expected(lambda logprobs: kl_penalty(logprobs, REFERENCE, estimator)), exact)
    value = kl_penalty(BEHAVIOUR, REFERENCE, estimator)
    assert torch.equal(value, kl_estimate(BEHAVIOUR, REFERENCE, estimator))


def test_differentiating_k1_or_k3_would_not_give_the_gradient_of_the_kl():
    exact = gradient(kl_of_states)
    naive = {name: expected(lambda logprobs, n=name: kl_estimate(logprobs, REFERENCE, n)) for name in ESTIMATORS}
    assert not close(naive["k1"], exact)
    assert not close(naive["k3"], exact)
    # What the docstring says they are instead.
    assert close(naive["k1"], torch.zeros_like(exact))
    assert close(naive["k3"], gradient(lambda logits: kl_of_states(logits, other_way=True)))
    assert close(naive["k2"], exact)


def test_k1_and_k3_are_unbiased_and_k3_is_never_negative():
    exact = kl_of_states(table(0))
    weights = probabilities(table(0))[:, None]
    estimates = {name: kl_estimate(BEHAVIOUR, REFERENCE, name) for name in ESTIMATORS}
    assert close((weights * estimates["k1"]).sum(), exact)
    assert close((weights * estimates["k3"]).sum(), exact)
    assert not close((weights * estimates["k2"]).sum(), exact)
    assert bool((estimates["k3"] >= 0).all())
    assert bool((estimates["k1"] < 0).any())


def all_sequences(step_index: list[int], rewards: Tensor) -> Batch:
    """Every sequence as an episode; step_index has -1 where a prompt or a reply stands between the three tokens."""
    steps = torch.tensor(step_index).expand(len(SEQUENCES), -1)
    mask = steps >= 0

    def spread(values: Tensor) -> Tensor:
        return torch.zeros(mask.shape, dtype=values.dtype).masked_scatter(mask, values)

    return Batch.from_tensors(
        tokens=spread(SEQUENCES),
        lengths=torch.full((len(SEQUENCES),), len(step_index)),
        mask=mask,
        logprobs=spread(BEHAVIOUR),
        step_index=steps,
        rewards=rewards,
        step_count=torch.full((len(SEQUENCES),), rewards.shape[1]),
        group=torch.zeros(len(SEQUENCES), dtype=torch.long),
        policy_version=torch.zeros(len(SEQUENCES), dtype=torch.long),
        truncated=torch.zeros(len(SEQUENCES), dtype=torch.bool),
        seed=torch.arange(len(SEQUENCES)),
    ).with_(reference_logprobs=spread(REFERENCE))


@pytest.mark.parametrize("step_index", [[-1, 0, 0, 0], [-1, 0, 1, 1], [-1, -1, 0, 0, -1, 1], [-1, 0, -1, 1, -1, 2]])
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_kl_in_the_reward_gives_the_gradient_of_reward_less_sequence_kl(estimator, step_index):
    steps = max(step_index) + 1
    rewards = torch.zeros(len(SEQUENCES), steps, dtype=torch.float64)
    rewards[:, -1] = REWARD
    batch = all_sequences(step_index, rewards)
    penalty = kl_to_go(batch.logprobs, batch.reference_logprobs, batch.mask, batch.step_index, 1.0, estimator)
    credit = batch.at_tokens(undiscounted_returns(batch.rewards)) - 0.3 * penalty
    assert bool((credit[~batch.mask] == 0).all())
    credit = credit[batch.mask].view(-1, LENGTH)

    def objective(logits: Tensor) -> Tensor:
        sequence_kl = token_logprobs(logits).sum(1) - REFERENCE.sum(1)
        return (probabilities(logits) * (REWARD - 0.3 * sequence_kl)).sum()

    exact = gradient(objective)
    assert close(-expected(lambda logprobs: policy_gradient(logprobs, credit)), exact)
    own_term_only = REWARD[:, None] - 0.3 * (BEHAVIOUR - REFERENCE)
    assert not close(-expected(lambda logprobs: policy_gradient(logprobs, own_term_only)), exact)


@pytest.mark.parametrize("name", ["reinforce", "reinforce-stable"])
def test_the_loss_of_reinforce_is_reward_less_kl_of_each_token_per_token(name):
    batch = all_sequences([-1, 0, 0, 0], REWARD[:, None])
    algorithm = make_algorithm(name, kl_coeff=0.3)
    batch = replace(batch, advantages=batch.at_every_token(batch.returns), kl_coeff=0.3)

    def total(logits: Tensor) -> Tensor:
        weighted = probabilities(logits).detach()
        parts = []
        for row in range(len(SEQUENCES)):
            alone = batch.select(torch.tensor([row]))
            logprobs = torch.cat([torch.zeros(1, 1, dtype=torch.float64), token_logprobs(logits)[row : row + 1]], 1)
            parts.append(weighted[row] * algorithm.loss(bare_scores(logprobs), alone) * batch.total_tokens)
        return torch.stack(parts).sum()

    exact = gradient(lambda logits: -(probabilities(logits) * REWARD).sum() + 0.3 * kl_of_states(logits))
    assert close(gradient(total), exact)


def test_importance_weights_turn_an_average_over_old_samples_into_one_over_new():
    old, new = table(2), table(0)
    function = torch.randn(VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    old_logprobs, new_logprobs = old.log_softmax(-1), new.log_softmax(-1)
    weights = importance_weights(new_logprobs, old_logprobs, cap=float("inf"))
    corrected = (old_logprobs.exp() * weights * function).sum(-1)
    assert close(corrected, (new_logprobs.exp() * function).sum(-1))
    assert not close((old_logprobs.exp() * function).sum(-1), corrected)


def test_importance_weights_are_cut_at_the_bound_and_nowhere_else():
    old, new = table(2).log_softmax(-1), table(0).log_softmax(-1)
    free = importance_weights(new, old, cap=float("inf"))
    assert free.min() < 1.5 < free.max()
    cut = importance_weights(new, old, cap=1.5)
    assert torch.equal(cut, torch.where(free > 1.5, torch.full_like(free, 1.5), free))


def test_no_gradient_flows_through_importance_weights():
    logprobs = BEHAVIOUR.clone().requires_grad_()
    assert not importance_weights(logprobs, REFERENCE, 2.0).requires_grad
    (
        importance_weights(logprobs, REFERENCE, 2.0) * policy_gradient(logprobs, torch.ones_like(logprobs))
    ).sum().backward()
    assert logprobs.grad is not None
    assert torch.allclose(logprobs.grad, -importance_weights(BEHAVIOUR, REFERENCE, 2.0))


@st.composite
def masks_and_cuts(draw):
    rows, width = draw(st.integers(1, 8)), draw(st.integers(2, 6))
    mask = draw(st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=rows, max_size=rows))
    owner = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    return torch.tensor(mask), owner, draw(st.integers(0, 2**31))


@given(masks_and_cuts())
@settings(max_examples=60, deadline=None)
def test_any_cut_into_micro_batches_adds_up_to_the_same_average(case):
    mask, owner, seed = case
    rows, width = mask.shape
    values = torch.randn(rows, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    whole = Batch.from_tensors(
        tokens=torch.arange(rows * width).view(rows, width),
        lengths=torch.full((rows,), width),
        mask=mask,
        logprobs=values,
        step_index=mask.long() - 1,
        rewards=torch.zeros(rows, 1),
        step_count=torch.ones(rows, dtype=torch.long),
        group=torch.zeros(rows, dtype=torch.long),
        policy_version=torch.zeros(rows, dtype=torch.long),
        truncated=torch.zeros(rows, dtype=torch.bool),
        seed=torch.arange(rows),
    )
    cuts = [torch.tensor([row for row in range(rows) if owner[row] == part]) for part in set(owner)]
    for parts in ([whole.select(cut) for cut in cuts], list(whole.micro_batches(2 * width))):
        assert sum(len(part) for part in parts) == rows
        for average in (per_token, per_episode, per_constant):
            added = torch.stack([average(part.logprobs, part) for part in parts]).sum()
            assert torch.allclose(added, average(values, whole))
    chosen = [values[row][mask[row]] for row in range(rows)]
    assert torch.allclose(per_token(values, whole), torch.cat(chosen).sum() / max(int(mask.sum()), 1))
    means = [row.mean() if len(row) else torch.zeros((), dtype=torch.float64) for row in chosen]
    assert torch.allclose(per_episode(values, whole), torch.stack(means).mean())


def test_masked_statistics_look_only_where_the_mask_is_true():
    values, mask = torch.tensor([[1.0, 9.0], [3.0, -5.0]]), torch.tensor([[True, False], [True, False]])
    assert masked_mean(values, mask) == 2.0
    assert masked_max(values, mask) == 3.0
    assert masked_mean(values, torch.zeros_like(mask)) == masked_max(values, torch.zeros_like(mask)) == 0.0
