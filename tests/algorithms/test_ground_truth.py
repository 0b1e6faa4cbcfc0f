"""Every algorithm's expected update, counted out over all groups, against its own definition."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from tabular import (
    LENGTH,
    LIMIT,
    SEQUENCES,
    STATES,
    bare_scores,
    batch_of,
    close,
    entropies_of,
    expected_update,
    gradient,
    logprobs_of,
    loss_of,
    make_algorithm,
    probabilities,
    scores_of,
    set_critic,
    table,
)
from torch import Tensor

from lmgym.advantages import kl_to_go
from lmgym.losses import KLEstimator

GENERATOR = torch.Generator().manual_seed(5)
REWARDS = torch.rand(len(SEQUENCES), 1, dtype=torch.float64, generator=GENERATOR)
SUCCESS = torch.tensor([1.0, 0, 0, 0, 1, 0, 0, 0, 0], dtype=torch.float64)[:, None]
STEP_REWARDS = torch.rand(len(SEQUENCES), 2, dtype=torch.float64, generator=GENERATOR)
STEP_REWARDS[:, 0] = torch.tensor([STEP_REWARDS[3 * (number // 3), 0] for number in range(len(SEQUENCES))])
"""The reward of a first token is known before the second is chosen, so it may depend on the first alone."""
ALL = range(len(SEQUENCES))
NO_FILTER = {"filter_groups": False, "max_resample_rounds": 1}


def expected_return(logits: Tensor, rewards: Tensor = REWARDS) -> Tensor:
    return (probabilities(logits) * rewards.sum(dim=1)).sum()


def state_kl(logits: Tensor, reference: Tensor) -> Tensor:
    """The sum over tokens of the KL of the next one, with the states as they are."""
    p, q = logits.log_softmax(-1), reference.log_softmax(-1)
    each = (p.exp() * (p - q)).sum(-1)[torch.tensor(STATES)].sum(dim=1)
    return (probabilities(logits).detach() * each).sum()


def sequence_kl(logits: Tensor, reference: Tensor) -> Tensor:
    p, q = logprobs_of(logits, ALL).sum(dim=1), logprobs_of(reference, ALL).sum(dim=1)
    return (p.exp() * (p - q)).sum()


TRUTH = gradient(expected_return)


@pytest.mark.parametrize(
    ("name", "settings", "group_size", "scale"),
    [
        ("reinforce", {"baseline": "none"}, 1, 1 / LENGTH),
        ("reinforce", {"baseline": "running", "averaging": "episode"}, 1, 1 / LENGTH),
        ("reinforce", {"baseline": "none", "averaging": "constant"}, 2, 1 / LIMIT),
        ("reinforce", {}, 2, 1 / 2 / LENGTH),  # a group's own mean takes one part in its size away
        ("reinforce", {}, 3, 2 / 3 / LENGTH),
        ("reinforce-stable", {"kl_coeff": 0.0}, 2, 1 / 2 / LENGTH),
        ("grpo", {"advantage_norm": "none", "averaging": "token"}, 2, 1 / 2 / LENGTH),
        ("grpo", {"advantage_norm": "none", "averaging": "constant"}, 3, 2 / 3 / LIMIT),
        ("rloo", {}, 2, 1 / LIMIT),
        ("rloo", {}, 3, 1 / LIMIT),
        ("rloo", {"learn_per_group": 2}, 3, 1 / LIMIT),  # from two of three episodes the same in expectation
        ("dr-grpo", {}, 2, 1 / 2 / LIMIT),
        ("dr-grpo", {}, 3, 2 / 3 / LIMIT),
        ("cispo", {"advantage_norm": "none"}, 2, 1 / 2 / LENGTH),
        ("cispo", {"advantage_norm": "none", "learn_per_group": 2}, 3, 2 / 3 / LENGTH),
        ("sapo", {"advantage_norm": "none"}, 2, 1 / 2 / LENGTH),
        ("gspo", {"advantage_norm": "none"}, 2, 1 / 2 / LENGTH),
        ("dapo", {"advantage_norm": "none", **NO_FILTER}, 2, 1 / 2 / LENGTH),
        ("reinforce-pp", {"advantage_norm": "none", "kl_coeff": 0.0}, 1, 1 / LENGTH),
        ("distill", {"reward_coeff": 1.0, "kl_coeff": 0.0, "teacher": "t"}, 2, 1 / 2 / LENGTH),
    ],
)
def test_unbiased_algorithms_follow_the_true_gradient(name, settings, group_size, scale):
    algorithm = make_algorithm(name, **settings)
    algorithm.state["mean_reward"] = 0.37
    assert close(expected_update(algorithm, REWARDS, group_size), scale * TRUTH)


def test_a_greedy_baseline_is_unbiased_too():
    algorithm = make_algorithm("remax")
    algorithm.greedy_returns = torch.tensor([0.8], dtype=torch.float64)
    assert close(expected_update(algorithm, REWARDS, 1), TRUTH / LENGTH)


def test_step_rewards_are_credited_to_what_came_before_them():
    exact = gradient(lambda logits: expected_return(logits, STEP_REWARDS))
    algorithm = make_algorithm("reinforce", baseline="none")
    assert close(expected_update(algorithm, STEP_REWARDS, 1, two_steps=True), exact / LENGTH)


@pytest.mark.parametrize("group_size", [2, 3])
def test_maxrl_climbs_the_first_terms_of_the_log_likelihood(group_size):
    def harmonic(logits: Tensor) -> Tensor:
        failure = 1 - expected_return(logits, SUCCESS)
        return torch.stack([(1 - failure**k) / k for k in range(1, group_size)]).sum()

    update = expected_update(make_algorithm("maxrl"), SUCCESS, group_size)
    assert close(update, gradient(harmonic) / LIMIT)


def standardised(group: tuple[int, ...]) -> Tensor:
    rewards = REWARDS[list(group), 0]
    return (rewards - rewards.mean()) / (rewards.std() + 1e-4)


@pytest.mark.parametrize("name", ["grpo", "gspo", "sapo", "cispo", "dapo"])
def test_the_grpo_family_agrees_on_policy_and_divides_by_the_deviation(name):
    """Ratio 1: no clip and no gate has closed, and they all have GRPO's gradient."""
    logits = table(0).requires_grad_()
    chances, exact = probabilities(table(0)), torch.zeros_like(logits)
    for group in itertools.product(ALL, repeat=2):
        objective = (standardised(group) * logprobs_of(logits, group).sum(dim=1)).mean() / LENGTH
        exact += chances[list(group)].prod() * torch.autograd.grad(objective, logits)[0]
    assert close(expected_update(make_algorithm(name), REWARDS, 2), exact.detach())
    assert not torch.allclose(exact, TRUTH / 2 / LENGTH, rtol=0.05)  # which is what biases it


def test_reinforce_pp_normalises_over_the_batch():
    group = (0, 4, 7, 7)
    batch = batch_of(group, REWARDS, table(0), group=[0, 0, 1, 1])
    found = make_algorithm("reinforce-pp", kl_coeff=0.0).advantages(batch)[:, 1:]
    values = REWARDS[list(group), 0].repeat_interleave(LENGTH)
    expected = (values - values.mean()) / (values.std() + 1e-4)
    assert torch.allclose(found.flatten(), expected)


CONSTANT = {"rloo", "dr-grpo", "maxrl"}
"""The algorithms whose loss is divided by the maximum length."""


def average(name: str) -> float:
    """What the sum over an episode's tokens is divided by."""
    return LIMIT if name in CONSTANT else LENGTH


KL_NAMES = ["reinforce", "reinforce-stable", "rloo", "grpo", "dr-grpo", "dapo", "gspo", "cispo", "sapo", "maxrl"]


@pytest.mark.parametrize("name", [*KL_NAMES, "distill", "remax"])
def test_a_kl_in_the_loss_has_the_gradient_of_each_tokens_own_kl(name):
    kinds: dict[str, dict[str, Any]] = {"distill": {"teacher": "t"}, "dapo": NO_FILTER}
    extra = kinds.get(name, {})
    algorithm = make_algorithm(name, kl_coeff=0.3, **extra)
    algorithm.greedy_returns = torch.zeros(1, dtype=torch.float64)
    nothing, reference = torch.zeros(len(SEQUENCES), 1, dtype=torch.float64), table(1)
    exact = -0.3 * gradient(lambda logits: state_kl(logits, reference)) / average(name)
    assert close(expected_update(algorithm, nothing, 2, reference=reference), exact)


exact_kl_to_go: Any = kl_to_go
KL_IN_REWARD = ["reinforce", "rloo", "grpo", "dr-grpo", "gspo", "cispo", "sapo", "maxrl", "reinforce-pp"]
WITHOUT_NORM = {"rloo", "dr-grpo", "maxrl"}


@pytest.mark.parametrize("estimator", ["k1", "k3"])
@pytest.mark.parametrize("name", KL_IN_REWARD)
def test_a_kl_in_the_reward_has_the_gradient_of_the_kl_of_whole_sequences(name, estimator, monkeypatch):
    monkeypatch.setattr("lmgym.algorithms.parts.kl_to_go", lambda *given: exact_kl_to_go(*given[:-1], estimator))
    settings = {} if name in WITHOUT_NORM else {"advantage_norm": "none"}
    algorithm = make_algorithm(name, kl_coeff=0.3, kl_place="reward", **settings)
    nothing, reference = torch.zeros(len(SEQUENCES), 1, dtype=torch.float64), table(1)
    exact = -0.3 * gradient(lambda logits: sequence_kl(logits, reference)) / average(name)
    if name == "gspo":  # the gradient of an episode is the mean of its tokens' gradients
        exact = gspo_kl_gradient(0.3, estimator, reference)
    assert close(expected_update(algorithm, nothing, 2, reference=reference), exact)


def gspo_kl_gradient(coefficient: float, estimator: KLEstimator, reference: Tensor) -> Tensor:
    """Sequence-level ratios give every token the mean gradient of its episode, weighted by the tokens' advantages."""
    logits = table(0).requires_grad_()
    chances, total = probabilities(table(0)), torch.zeros_like(logits)
    for number in ALL:
        batch = batch_of((number,), REWARDS, table(0), reference)
        to_go = kl_to_go(batch.logprobs, batch.reference_logprobs, batch.mask, batch.step_index, 1.0, estimator)
        mean = logprobs_of(logits, (number,)).mean()
        total -= coefficient * chances[number] * to_go.sum() / LENGTH * torch.autograd.grad(mean, logits)[0]
    return total


@pytest.mark.parametrize("name", [*(name for name in KL_NAMES if name != "reinforce-stable"), "reinforce-pp", "ppo"])
def test_an_entropy_bonus_has_the_gradient_of_the_entropy(name):
    extra: dict[str, Any] = dict(NO_FILTER) if name == "dapo" else {}
    extra |= {} if name in WITHOUT_NORM else {"advantage_norm": "none"}
    algorithm = make_algorithm(name, entropy_coeff=0.2, kl_coeff=0.0, **extra)
    nothing = torch.zeros(len(SEQUENCES), 1, dtype=torch.float64)

    def entropy(logits: Tensor) -> Tensor:
        return (probabilities(logits).detach() * entropies_of(logits, ALL).sum(dim=1)).sum()

    assert close(expected_update(algorithm, nothing, 2), 0.2 * gradient(entropy) / average(name))


@pytest.mark.parametrize("tis_cap", [1e9, 0.0])
@pytest.mark.parametrize("name", ["reinforce", "remax"])
def test_importance_ratios_turn_old_episodes_into_new_ones_for_single_tokens(name, tis_cap):
    """Of one token the correction is exact: of the first, when the reward depends on it alone."""
    first = torch.tensor([REWARDS[3 * (number // 3), 0] for number in ALL], dtype=torch.float64)[:, None]
    algorithm = make_algorithm(name, tis_cap=tis_cap, **({"baseline": "none"} if name == "reinforce" else {}))
    algorithm.greedy_returns = torch.tensor([0.3], dtype=torch.float64)
    update = expected_update(algorithm, first, 1, behaviour=table(3))[0]
    exact = gradient(lambda logits: expected_return(logits, first))[0] / LENGTH
    assert close(update, exact) == bool(tis_cap)


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr-grpo", "reinforce-pp", "ppo"])
@pytest.mark.parametrize("good", [True, False])
def test_a_clip_stops_what_has_gone_far_enough_and_nothing_else(name, good):
    algorithm = make_algorithm(name, **({"kl_coeff": 0.0} if name == "reinforce-pp" else {}))
    config = algorithm.config
    low, high = getattr(config, "clip_low", 0.2), getattr(config, "clip_high", 0.2)
    advantage = torch.tensor([[1.0 if good else -1.0]], dtype=torch.float64)
    for change in (0.5, 1 - low - 0.01, 1 - low + 0.01, 1.0, 1 + high - 0.01, 1 + high + 0.01, 2.0):
        logprobs = torch.tensor([[change]], dtype=torch.float64).log().requires_grad_()
        before = torch.zeros_like(advantage)
        batch = batch_of((0,), REWARDS, table(0)).with_(advantages=advantage, logprobs=before, old_logprobs=before)
        slope = torch.autograd.grad(algorithm.loss(bare_scores(logprobs), batch), logprobs)[0].item()
        slope *= average(name) / LENGTH
        stopped = change > 1 + high if good else change < 1 - low
        assert slope == pytest.approx(0.0 if stopped else -advantage.item() * change)


def test_gspo_clips_whole_episodes():
    algorithm = make_algorithm("gspo")
    batch = batch_of((0, 1), REWARDS, table(0)).with_(advantages=torch.ones(2, 3, dtype=torch.float64))
    # The first episode's tokens moved far apart but cancel out; the second's moved a little in the same direction.
    change = torch.tensor([[0, 0.5, -0.5], [0, 0.001, 0.001]], dtype=torch.float64)
    logprobs = (batch.logprobs + change).requires_grad_()
    slopes = torch.autograd.grad(algorithm.loss(bare_scores(logprobs), batch), logprobs)[0]
    assert torch.allclose(slopes[0, 1:], torch.full((2,), -1 / 2 / 2, dtype=torch.float64))
    assert bool((slopes[1] == 0).all())


def test_sapo_fades_on_both_sides():
    algorithm = make_algorithm("sapo")
    slopes = []
    for change in (0.2, 0.9, 1.0, 1.1, 5.0):
        ratio = torch.tensor([[change]], dtype=torch.float64)
        logprobs = ratio.log().requires_grad_()
        one = torch.ones(1, 1, dtype=torch.float64)
        before = torch.zeros_like(one)
        batch = batch_of((0,), REWARDS, table(0)).with_(advantages=one, logprobs=before, old_logprobs=before)
        slope = torch.autograd.grad(algorithm.loss(bare_scores(logprobs), batch), logprobs)[0].item() / change
        slopes.append(-slope)
    assert slopes[2] == pytest.approx(1.0)
    assert max(slopes) == slopes[2]
    assert slopes[0] < slopes[1]
    assert slopes[4] < slopes[3]


@pytest.mark.parametrize("two_steps", [False, True])
def test_ppo_without_clip_and_with_lambda_one_is_unbiased_whatever_the_critic_says(two_steps):
    rewards = STEP_REWARDS if two_steps else REWARDS
    critic = torch.randn(len(STATES[0]) + 2, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    settings = {"gae_lambda": 1.0, "advantage_norm": "none", "clip": 1e9}
    exact = gradient(lambda logits: expected_return(logits, rewards)) / LENGTH
    for gae in ("tokens", "steps"):
        algorithm = make_algorithm("ppo", gae=gae, **settings)

        def look_ahead(batch, algorithm=algorithm):
            states = torch.tensor(
                [[0, *(1 + s for s in STATES[SEQUENCES.index(tuple(row[1:]))])] for row in batch.tokens.tolist()]
            )
            values = torch.cat([critic.new_zeros(1), critic])[states] * batch.mask
            set_critic(algorithm, lambda _: values)
            return batch

        update = expected_update(algorithm, rewards, 1, change=look_ahead, two_steps=two_steps)
        assert close(update, exact)


def test_ppos_kl_in_the_reward_has_the_gradient_of_the_kl_of_whole_sequences():
    algorithm = make_algorithm("ppo", kl_coeff=0.3, kl_place="reward", gae_lambda=1.0, advantage_norm="none", clip=1e9)
    set_critic(algorithm, lambda batch: torch.full_like(batch.logprobs, 0.4) * batch.mask)
    nothing, reference = torch.zeros(len(SEQUENCES), 1, dtype=torch.float64), table(1)
    exact = -0.3 * gradient(lambda logits: sequence_kl(logits, reference)) / LENGTH
    assert close(expected_update(algorithm, nothing, 2, reference=reference), exact)


def test_expert_iteration_imitates_what_succeeded_and_nothing_else():
    algorithm = make_algorithm("expert-iteration")
    logits = table(0).requires_grad_()
    chances, exact = probabilities(table(0)), torch.zeros_like(logits)
    for group in itertools.product(ALL, repeat=2):
        kept = [number for number in group if SUCCESS[number] > 0]
        if kept:
            mean = logprobs_of(logits, kept).mean()
            exact += chances[list(group)].prod() * torch.autograd.grad(mean, logits)[0]
    logits = table(0).requires_grad_()
    found = torch.zeros_like(logits)
    for group in itertools.product(ALL, repeat=2):
        batch = batch_of(group, SUCCESS, table(0))
        selected = algorithm.select_for_update(batch.with_(advantages=algorithm.advantages(batch)))
        if len(selected):
            kept = [number for number in group if SUCCESS[number] > 0]
            zeros = torch.zeros(len(kept), 1, dtype=torch.float64)
            loss = algorithm.loss(bare_scores(torch.cat([zeros, logprobs_of(logits, kept)], dim=1)), selected)
            found -= chances[list(group)].prod() * torch.autograd.grad(loss, logits)[0]
    assert close(found.detach(), exact.detach())


def test_best_of_n_keeps_the_best():
    batch = batch_of((0, 1, 2, 3), REWARDS, table(0), group=[0, 0, 1, 1])
    kept = make_algorithm("expert-iteration", keep=1).advantages(batch)[:, 1] > 0
    returns = batch.returns
    assert kept.tolist() == [
        bool(returns[0] >= returns[1]),
        bool(returns[1] > returns[0]),
        bool(returns[2] >= returns[3]),
        bool(returns[3] > returns[2]),
    ]


def test_dpo_follows_the_gradient_of_its_own_definition():
    algorithm, strength = make_algorithm("online-dpo"), 0.1
    logits, reference = table(0).requires_grad_(), table(1)
    group = (0, 5, 3, 8)
    batch = batch_of(group, REWARDS, table(0), reference, group=[0, 0, 1, 1])
    batch = batch.with_(advantages=algorithm.advantages(batch))
    found = torch.autograd.grad(algorithm.loss(scores_of(logits, group), batch), logits)[0]
    change = (logprobs_of(logits, group) - logprobs_of(reference, group)).sum(dim=1)
    losses = []
    for one, other in ((0, 1), (2, 3)):
        better, worse = (one, other) if batch.returns[one] > batch.returns[other] else (other, one)
        losses.append(-(strength * (change[better] - change[worse])).sigmoid().log())
    exact = torch.autograd.grad(torch.stack(losses).sum() / 2, logits)[0]
    assert close(found, exact)


def test_an_entropy_bonus_and_a_kl_add_up_on_zero_advantage_groups_too():
    algorithm = make_algorithm("reinforce", entropy_coeff=0.2, kl_coeff=0.3, tis_cap=2.0)
    nothing, reference = torch.zeros(len(SEQUENCES), 1, dtype=torch.float64), table(1)

    def exact(logits: Tensor) -> Tensor:
        entropy = (probabilities(logits).detach() * entropies_of(logits, ALL).sum(dim=1)).sum()
        return 0.2 * entropy - 0.3 * state_kl(logits, reference)

    assert close(expected_update(algorithm, nothing, 2, reference=reference), gradient(exact) / LENGTH)


def test_a_group_that_is_equal_but_for_a_penalty_is_not_blown_up():
    """Eight right answers, one of them too long; and a KL in the reward of a zero-advantage group."""
    equal = torch.ones(len(SEQUENCES), 1, dtype=torch.float64)
    batch = batch_of((0, 1, 2, 3), equal, table(0), table(1))
    algorithm = make_algorithm("grpo", kl_place="reward", kl_coeff=0.01)
    advantages = algorithm.advantages(batch.with_(kl_coeff=0.01))
    assert 0 < advantages.abs().max() < 0.2
    shaped = make_algorithm("dapo", soft_length=0, hard_length=4).advantages(batch)
    assert torch.allclose(shaped, torch.zeros_like(shaped))
    lengths = batch.mask.clone()
    lengths[0, 2] = False
    shaped = make_algorithm("dapo", soft_length=0, hard_length=4).advantages(batch.with_(mask=lengths))
    assert 0.5 < shaped.abs().max() < 2


@pytest.mark.parametrize("name", ["reinforce-stable", "grpo", "rloo"])
def test_credit_that_is_only_rounding_is_no_credit(name):
    """Eight equal rewards whose float32 mean is not quite that number: nothing may be learnt from them."""
    equal = torch.full((len(SEQUENCES), 1), 0.1, dtype=torch.float64)
    batch = batch_of(range(8), equal, table(0), table(1))
    batch = batch.with_(rewards=batch.rewards.float())
    algorithm = make_algorithm(name, kl_coeff=0.0)
    batch = batch.with_(advantages=algorithm.advantages(batch))
    assert 0 < batch.advantages.abs().max() < 1e-6
    assert not len(algorithm.select_for_update(batch))


def test_an_episode_at_the_mean_of_a_group_that_teaches_still_counts():
    rewards = torch.tensor([0.0, 0.5, 1.0, 1, 0, 0, 0, 0, 0], dtype=torch.float64)[:, None]
    batch = batch_of((0, 1, 2), rewards, table(0))
    algorithm = make_algorithm("dapo")
    selected = algorithm.select_for_update(batch.with_(advantages=algorithm.advantages(batch)))
    assert (len(selected), selected.total_episodes, selected.total_tokens) == (2, 3, 6)


def test_groups_without_a_signal_leave_the_average_only_when_they_are_filtered():
    rewards = torch.tensor([1.0, 0, 1, 1, 0, 0, 0, 0, 0], dtype=torch.float64)[:, None]
    group = (0, 1, 2, 3)  # the second pair is equally good
    batch = batch_of(group, rewards, table(0), group=[0, 0, 1, 1])
    for name, totals in (("grpo", (4, 8)), ("dapo", (2, 4))):
        algorithm = make_algorithm(name)
        selected = algorithm.select_for_update(batch.with_(advantages=algorithm.advantages(batch)))
        assert len(selected) == 2
        assert (selected.total_episodes, selected.total_tokens) == totals


@pytest.mark.parametrize("advantage_norm", ["none", "group", "batch"])
def test_the_reward_counts_as_much_as_asked_for_beside_a_teacher(advantage_norm):
    """The coefficient scales the reward's part of the update, however that is normalised."""
    once, twice, never = (
        expected_update(
            make_algorithm("distill", teacher="t", reward_coeff=coefficient, advantage_norm=advantage_norm),
            REWARDS,
            2,
            reference=table(1),
        )
        for coefficient in (1.0, 2.0, 0.0)
    )
    assert close(twice - never, 2 * (once - never))


def test_a_longer_loss_than_necessary_would_be_seen():
    """The checks above can fail: a wrong sign or scale is not close."""
    algorithm = make_algorithm("rloo")
    update = expected_update(algorithm, REWARDS, 2)
    assert not close(-update, TRUTH / LIMIT)
    assert not close(1.01 * update, TRUTH / LIMIT)
    assert loss_of(algorithm, batch_of((0, 1), REWARDS, table(0)), table(0), (0, 1)).ndim == 0
