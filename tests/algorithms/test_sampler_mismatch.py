"""A sampler that rounds differently from the learner: no clip may take its difference for a change of the policy."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_tasks import TRAIN, Remembering, Vowel, chat
from tabular import (
    LENGTH,
    LIMIT,
    SEQUENCES,
    expected_update,
    logprobs_of,
    make_algorithm,
    probabilities,
    set_critic,
    table,
)
from torch import Tensor

from lmgym.algorithms.registry import find_algorithm

REWARDS = torch.rand(len(SEQUENCES), 1, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
NOISE = 0.02
"""About the difference of log-probabilities that bfloat16 makes."""
SAMPLER = table(0) + NOISE * table(11)
CLIPS = ["grpo", "dr-grpo", "dapo", "gspo", "sapo", "reinforce-pp", "ppo"]
FRESH = torch.ones(2, dtype=torch.bool)


def update(name: str, sampler: Tensor, fresh: bool = True, **settings) -> Tensor:
    given = dict(settings) if name in ("dr-grpo", "reinforce-stable") else {"advantage_norm": "none", **settings}
    given |= {"kl_coeff": 0.0, "baseline": "group"} if name == "reinforce-pp" else {}
    algorithm = make_algorithm(name, **given, **({"gae_lambda": 1.0} if name == "ppo" else {}))
    set_critic(algorithm, lambda batch: batch.at_every_token(torch.full_like(batch.returns, 0.5)))
    scale = LIMIT / LENGTH if name == "dr-grpo" else 1.0
    return scale * expected_update(
        algorithm, REWARDS, 2, behaviour=sampler, change=lambda batch: batch.with_(on_policy=FRESH & fresh)
    )


def definition(name: str, largest: float) -> Tensor:
    """The policy gradient of the sampler's groups, each token by how much likelier it is to the learner."""
    logits = table(0).requires_grad_()
    chances, total = probabilities(SAMPLER), torch.zeros_like(logits)
    for group in itertools.product(range(len(SEQUENCES)), repeat=2):
        rewards, logprobs = REWARDS[list(group), 0], logprobs_of(logits, group)
        advantages = rewards - (0.5 if name == "ppo" else rewards.mean())
        weights = (logprobs.detach() - logprobs_of(SAMPLER, group)).exp().clamp(max=largest) if largest else 1.0
        if name == "gspo":  # the gradient of an episode is its tokens' mean, on each of them
            mean = logprobs.mean(dim=1, keepdim=True).expand_as(logprobs)
            objective = (weights * advantages[:, None] * mean).sum() / 2 / LENGTH
        else:
            objective = (weights * advantages[:, None] * logprobs).sum() / 2 / LENGTH
        total += chances[list(group)].prod() * torch.autograd.grad(objective, logits)[0]
    return total.detach()


@pytest.mark.parametrize("largest", [2.0, 1.001, 0.0])
@pytest.mark.parametrize("name", CLIPS)
def test_the_gradient_of_fresh_episodes_is_kept_and_corrected(name, largest):
    found = update(name, SAMPLER, tis_cap=largest)
    assert torch.allclose(found, definition(name, largest), atol=1e-12)


def test_against_the_sampler_itself_a_narrow_clip_would_lose_much_of_it():
    kept, lost = update("gspo", SAMPLER), update("gspo", SAMPLER, fresh=False)
    assert lost.norm() < 0.8 * kept.norm()


@pytest.mark.parametrize("name", [*CLIPS, "cispo", "reinforce-stable"])
def test_the_correction_brings_it_nearer_to_the_learners_own_gradient(name):
    """For the two that weigh against the sampler already, by that weight."""
    off: dict[str, Any] = {"tis_cap": 0.0}
    extra: dict[str, Any] = {"kl_coeff": 0.0} if name == "reinforce-stable" else {}
    exact = update(name, table(0), **extra)
    corrected, plain = (update(name, SAMPLER, **extra, **given) - exact for given in (dict[str, Any](), off))
    assert corrected.norm() < 0.8 * plain.norm()


def train(name: str, noise: float, **given):
    kind, seen = find_algorithm(name), []
    generator = torch.Generator().manual_seed(3)
    policy = chat()
    act = policy.next_actions

    def rounded(logprobs):
        return tuple(value + noise * float(torch.randn((), generator=generator)) for value in logprobs)

    def shaken(states, temperature=None):
        return [replace(action, logprobs=rounded(action.logprobs)) for action in act(states, temperature)]

    policy.next_actions = shaken
    settings = {"iterations": 1, "problems_per_iteration": 4, "group_size": 8, "eval_problems": 0, **given}
    algorithm = kind(
        policy, Vowel(TRAIN), kind.Config.from_settings({"learning_rate": 1e-3, **settings}), None, Remembering()
    )
    step = algorithm.learner.step

    def recording(batch, loss):
        seen.append((batch, step(batch, loss)))
        return seen[-1][1]

    algorithm.learner.step = recording
    algorithm.train()
    return seen


@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_in_the_real_loop_the_first_update_does_not_see_the_samplers_rounding(name):
    (_, plain), (_, noisy) = (train(name, noise, tis_cap=0.0)[0] for noise in (0.0, NOISE))
    assert noisy.gradient_norm == pytest.approx(plain.gradient_norm, rel=1e-5)
    assert plain.gradient_norm > 0


def test_later_updates_are_against_the_learner_as_it_was_in_the_first():
    (first, update_), (second, _) = train("gspo", NOISE, updates_per_iteration=2)
    assert bool(first.on_policy.all())
    assert not bool(second.on_policy.any())
    assert torch.equal(second.old_logprobs, update_.logprobs)
    assert not torch.allclose(second.old_logprobs, second.logprobs, atol=NOISE / 10)
