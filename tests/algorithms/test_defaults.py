"""Every algorithm's expected update with its default settings, counted out over all groups, also when most succeed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tabular import (
    LENGTH,
    LIMIT,
    PREFIXES,
    SEQUENCES,
    STATES,
    expected_update,
    gradient,
    logprobs_of,
    make_algorithm,
    probabilities,
    set_critic,
    table,
)
from torch import Tensor

from lmgym.algorithms.catalogue import ALGORITHMS

SUCCESS = torch.tensor([float(number in (0, 4)) for number in range(len(SEQUENCES))], dtype=torch.float64)[:, None]
REFERENCE = table(1)
GREEDY = 0.8
VALUES = torch.tensor([[0.0, 0.3, 0.6]], dtype=torch.float64)
CONSTANT = {"rloo", "dr-grpo", "maxrl"}
KL_IN_LOSS = ["reinforce", "reinforce-stable", "remax", "rloo", "grpo", "dr-grpo", "gspo", "cispo", "sapo", "maxrl"]
KL_IN_LOSS += ["ppo", "distill"]


def policy(lift: float) -> Tensor:
    """Logits that lift the two right sequences: −1 solves the task now and then, 5 almost always."""
    logits = table(0)
    for first, second in (SEQUENCES[0], SEQUENCES[4]):
        logits[0, first] += lift
        logits[PREFIXES.index((first,)), second] += lift
    return logits


def scale(name: str) -> float:
    return 1 / (LIMIT if name in CONSTANT else LENGTH)


def state_kl(logits: Tensor) -> Tensor:
    p, q = logits.log_softmax(-1), REFERENCE.log_softmax(-1)
    each = (p.exp() * (p - q)).sum(-1)[torch.tensor(STATES)].sum(dim=1)
    return (probabilities(logits).detach() * each).sum()


def standardised(values: Tensor) -> Tensor:
    spread = values.std()
    return (values - values.mean()) / (spread + 1e-4) if spread > 1e-6 else torch.zeros_like(values)


def gae(rewards: Tensor) -> Tensor:
    last = rewards - VALUES[0, 2]
    first = VALUES[0, 2] - VALUES[0, 1] + 0.95 * last
    return standardised(torch.stack([first, last], dim=1))


def kl_to_come(rewards: Tensor, group: tuple[int, ...], logits: Tensor) -> Tensor:
    gaps = (logprobs_of(logits, group) - logprobs_of(REFERENCE, group)).detach()
    penalty = torch.stack([gaps.sum(dim=1), gaps[:, 1]], dim=1)
    return standardised(rewards[:, None] - 0.001 * penalty)


def over_success_rate(rewards: Tensor) -> Tensor:
    mean = rewards.mean()
    return (rewards - mean) / mean if mean > 0 else torch.zeros_like(rewards)


CREDITS: dict[str, Callable[[Tensor], Tensor]] = {
    "reinforce": lambda rewards: rewards - rewards.mean(),
    "reinforce-stable": lambda rewards: rewards - rewards.mean(),
    "remax": lambda rewards: rewards - GREEDY,
    "rloo": lambda rewards: rewards - rewards.flip(0),
    "dr-grpo": lambda rewards: rewards - rewards.mean(),
    "maxrl": over_success_rate,
    **dict.fromkeys(["grpo", "gspo", "sapo", "cispo", "dapo"], standardised),
    "distill": torch.zeros_like,
}


def preference(group: tuple[int, ...], logits: Tensor) -> Tensor:
    rewards = SUCCESS[list(group), 0]
    gained = (logprobs_of(logits, group) - logprobs_of(REFERENCE, group)).sum(dim=1)
    return (0.1 * (rewards[0] - rewards[1]) * (gained[0] - gained[1])).sigmoid().log() * (rewards[0] != rewards[1])


def objective(name: str, group: tuple[int, ...], logits: Tensor) -> Tensor:
    """What the algorithm climbs on one group, written down again from its definition."""
    rewards, logprobs = SUCCESS[list(group), 0], logprobs_of(logits, group)
    if name == "ppo":
        return (gae(rewards) * logprobs).mean()
    if name == "reinforce-pp":
        return (kl_to_come(rewards, group, logits) * logprobs).mean()
    if name in ("dpo", "online-dpo"):
        return preference(group, logits)
    if name == "sft":
        return logprobs.mean()
    if name == "expert-iteration":
        return logprobs[rewards > 0].mean() if bool(rewards.any()) else logits.sum() * 0
    return (CREDITS[name](rewards)[:, None] * logprobs).sum() / len(group) * scale(name)


def actor(name: str, logits: Tensor) -> Tensor:
    """Who samples: the policy itself; in SFT somebody else, whose samples are the worked solutions."""
    return table(7) if name == "sft" else logits


def definition(name: str, logits: Tensor, kl_coeff: float) -> Tensor:
    logits = logits.clone().requires_grad_()
    chances, total = probabilities(actor(name, logits)).detach(), torch.zeros_like(logits)
    for group in itertools.product(range(len(SEQUENCES)), repeat=2):
        total += chances[list(group)].prod() * torch.autograd.grad(objective(name, group, logits), logits)[0]
    return total.detach() - kl_coeff * scale(name) * gradient(state_kl, logits.detach())


def update(name: str, logits: Tensor, **settings) -> Tensor:
    algorithm = make_algorithm(name, **settings, **({"teacher": "t"} if name == "distill" else {}))
    algorithm.greedy_returns = torch.tensor([GREEDY], dtype=torch.float64)
    set_critic(algorithm, lambda batch: VALUES * batch.mask)
    behaviour = actor(name, logits)
    fresh = torch.full((2,), behaviour is logits)
    given: dict[str, Any] = {"logits": logits, "behaviour": behaviour, "reference": REFERENCE}
    return expected_update(algorithm, SUCCESS, 2, change=lambda batch: batch.with_(on_policy=fresh), **given)


def same(found: Tensor, exact: Tensor) -> bool:
    assert exact.norm() > 1e-6
    return bool((found - exact).norm() < 1e-8 * exact.norm())


LIFTS = [-1.0, 2.5, 5.0]


def test_the_policies_solve_the_task_now_and_then_or_almost_always():
    rates = [float((probabilities(policy(lift)) * SUCCESS[:, 0]).sum()) for lift in LIFTS]
    assert rates[0] < 0.5 < 0.9 < rates[1] < rates[2]
    assert rates[2] > 0.98


@pytest.mark.parametrize("lift", LIFTS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_defaults_of_every_algorithm_follow_its_definition(name, lift):
    kl_coeff = {"reinforce-stable": 0.01, "distill": 1.0}.get(name, 0.0)
    assert same(update(name, policy(lift)), definition(name, policy(lift), kl_coeff))


@pytest.mark.parametrize("lift", LIFTS)
@pytest.mark.parametrize("name", KL_IN_LOSS)
def test_by_default_a_kl_has_the_gradient_of_the_kl_however_much_is_solved(name, lift):
    """Adding a KL adds its gradient and nothing else."""
    kind = {"reward_coeff": 1.0} if name == "distill" else {}
    added = update(name, policy(lift), kl_coeff=0.3, **kind) - update(name, policy(lift), kl_coeff=0.0, **kind)
    assert same(added, -0.3 * scale(name) * gradient(state_kl, policy(lift)))


@pytest.mark.parametrize("settings", [{}, {"tis_cap": 2.0}])
def test_a_tiny_entropy_bonus_switches_nothing_else_on(settings):
    without = update("reinforce", policy(3.0), kl_coeff=0.3, **settings)
    tiny = update("reinforce", policy(3.0), kl_coeff=0.3, entropy_coeff=1e-12, **settings)
    assert torch.allclose(without, tiny, atol=1e-10)
