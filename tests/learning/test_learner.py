"""Batches keep every token in its column; one optimiser step is the same however it is cut."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import tiny_model, tiny_network, tiny_tokenizer
from hand_made import Turn, gradients, make_episode, plain_network, plain_scores, shake_adapter

from lmgym.learning.batch import Batch
from lmgym.learning.learner import Learner, LearnerSettings, Update
from lmgym.learning.schedules import learning_rate_factor
from lmgym.losses import per_token, policy_gradient
from lmgym.models.distribution import Distribution
from lmgym.models.language_model import LanguageModel
from lmgym.models.loading import wrap_network
from lmgym.models.lora import LoraSettings, add_lora
from lmgym.models.prefix_tree import build_prefix_tree
from lmgym.models.token_scorer import Scores

SETTINGS = LearnerSettings(
    learning_rate=0.1,
    schedule="constant",
    warmup_steps=0,
    total_steps=10,
    max_gradient_norm=1e9,
    micro_batch_tokens=10**6,
    distribution=Distribution(),
)


def reinforce(scores: Scores, batch: Batch) -> torch.Tensor:
    return per_token(policy_gradient(scores.logprobs, batch.advantages), batch)


def ids(count: int, seed: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(3, 99, count)]


def selected_batch() -> Batch:
    """Three groups of ragged two-step episodes with a shared prefix, replies and forced tokens."""
    episodes = []
    for group in range(3):
        for member in range(3):
            seed = 10 * group + member
            written = ids(4 + seed % 4, seed)
            first = Turn(ids(12, 99) + ids(3 + group, 50 + group), written, [1, 0, 0] + [1] * (len(written) - 3))
            episodes.append(make_episode(first, Turn(ids(2, seed), ids(3, seed + 5), [1, 1, 1]), group=group))
    batch = Batch.from_episodes(episodes)
    generator = torch.Generator().manual_seed(0)
    return batch.with_(advantages=torch.randn(batch.mask.shape, generator=generator) * batch.mask)


def one_step(learner: Learner, batch: Batch) -> Update:
    """A step that is not left out for want of episodes."""
    update = learner.step(batch, reinforce)
    assert update is not None
    return update


def with_sgd(model: LanguageModel, **changes) -> Learner:
    """Adam's first step only knows signs: plain gradient descent shows the gradient itself."""
    learner = Learner(model, replace(SETTINGS, **changes))
    learner.optimizer = torch.optim.SGD(model.trainable().values(), lr=1.0)  # type: ignore[assignment]
    return learner


def weights(model: LanguageModel) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.network.named_parameters()}


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return math.sqrt(sum(float((one[name] - other[name]).square().sum()) for name in one))


# Batch


TWO_STEPS = make_episode(
    Turn([11, 12], [21, 22, 23], [1, 0, 1], reward=0.5), Turn([13], [24, 25], [1, 1], reward=2.0), version=4
)
ONE_STEP = make_episode(Turn([14, 15, 16], [26], [1], reward=-1.0), version=3)


def test_column_t_is_about_token_t():
    batch = Batch.from_episodes([TWO_STEPS, ONE_STEP])
    assert batch.tokens.tolist() == [[11, 12, 21, 22, 23, 13, 24, 25], [14, 15, 16, 26, 0, 0, 0, 0]]
    assert batch.lengths.tolist() == [8, 4]
    assert batch.mask.long().tolist() == [[0, 0, 1, 0, 1, 0, 1, 1], [0, 0, 0, 1, 0, 0, 0, 0]]
    assert batch.logprobs.tolist() == [[0, 0, -1, 0, -2, 0, -3, -4], [0, 0, 0, -1, 0, 0, 0, 0]]
    assert batch.step_index.tolist() == [[-1, -1, 0, 0, 0, -1, 1, 1], [-1, -1, -1, 0, -1, -1, -1, -1]]
    assert batch.rewards.tolist() == [[0.5, 2.0], [-1.0, 0.0]]
    assert batch.step_count.tolist() == [2, 1]
    assert batch.policy_version.tolist() == [4, 3]
    assert (batch.total_tokens, batch.total_episodes) == (5, 2)


def test_a_value_per_step_goes_to_that_steps_chosen_tokens_only():
    batch = Batch.from_episodes([TWO_STEPS, ONE_STEP])
    spread = batch.at_tokens(torch.tensor([[5.0, 7.0], [3.0, 9.0]]))
    assert spread.tolist() == [[0, 0, 5, 0, 5, 0, 7, 7], [0, 0, 0, 3, 0, 0, 0, 0]]


def test_groups_stand_together_and_those_of_other_iterations_apart():
    made = [
        make_episode(Turn([1], [marker], [1]), group=group, iteration=iteration)
        for marker, group, iteration in [(30, 0, 5), (31, 1, 5), (32, 0, 5), (33, 0, 2), (34, 1, 5), (35, 0, 2)]
    ]
    batch = Batch.from_episodes(made)
    assert batch.tokens[:, 1].tolist() == [30, 32, 31, 34, 33, 35]
    assert batch.group.tolist() == [0, 0, 1, 1, 2, 2]


def test_the_totals_are_those_of_the_whole_step():
    batch = selected_batch()
    part = batch.select(torch.tensor([4, 1]))
    assert torch.equal(part.tokens, batch.tokens[[4, 1]])
    assert torch.equal(part.advantages, batch.advantages[[4, 1]])
    assert (part.total_tokens, part.total_episodes) == (batch.total_tokens, 9)
    parts = list(batch.micro_batches(60))
    assert len(parts) > 1
    assert torch.equal(torch.cat([part.tokens for part in parts]), batch.tokens)
    assert {part.total_tokens for part in parts} == {int(batch.mask.sum())}


def test_micro_batches_keep_to_their_budget_and_lose_nobody():
    batch = selected_batch()
    for budget in (1, 30, 60, 10**6):
        parts = list(batch.micro_batches(budget, shared=12))
        assert torch.equal(torch.cat([part.lengths for part in parts]), batch.lengths)
        computed = [len(build_prefix_tree(part.tokens, part.lengths, 12).tokens) for part in parts]
        assert all(len(part) == 1 or count <= budget for part, count in zip(parts, computed, strict=True))


# Learner


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_step_follows_the_gradient_that_transformers_gives(architecture):
    model, batch = tiny_model(architecture), selected_batch()
    twin, before = plain_network(model), weights(model)
    logprobs, entropies = plain_scores(twin, batch.tokens, batch.mask, 1.0)
    loss = -(batch.advantages * logprobs * batch.mask).sum() / batch.mask.sum()
    loss.backward()
    exact = gradients(twin)
    update = one_step(with_sgd(model, micro_batch_tokens=40), batch)
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in exact.values()))
    expected = {name: before[name] - 0.1 * exact[name] for name in before}
    assert distance(weights(model), expected) < 1e-4 * 0.1 * norm
    assert update.gradient_norm == pytest.approx(norm, rel=1e-4)
    assert update.loss == pytest.approx(loss.item(), abs=1e-5)
    torch.testing.assert_close(update.logprobs, logprobs.detach(), atol=1e-4, rtol=0)
    torch.testing.assert_close(update.entropies, entropies.detach(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gpt2"])
def test_the_size_of_a_micro_batch_never_changes_the_step(architecture):
    batch = selected_batch()
    moved, updates = [], []
    for tokens in (10**6, 64, 20, 1):
        model = tiny_model(architecture)
        learner = with_sgd(model, micro_batch_tokens=tokens)
        updates.append(one_step(learner, batch))
        moved.append(weights(model))
    step = distance(moved[0], weights(tiny_model(architecture)))
    assert step > 0.01
    assert max(distance(moved[0], other) for other in moved[1:]) < 1e-5 * step
    for update in updates[1:]:
        torch.testing.assert_close(update.logprobs, updates[0].logprobs, atol=1e-5, rtol=0)
        assert update.loss == pytest.approx(updates[0].loss, abs=1e-6)


def test_with_its_own_optimiser_too_micro_batches_hardly_matter():
    batch, moved = selected_batch(), []
    for tokens in (10**6, 64, 1):
        model = tiny_model()
        Learner(model, replace(SETTINGS, learning_rate=1e-3, micro_batch_tokens=tokens)).step(batch, reinforce)
        moved.append(weights(model))
    step = distance(moved[0], weights(tiny_model()))
    # Where a gradient is but rounding, Adam's first step is its sign all the same.
    assert max(distance(moved[0], other) for other in moved[1:]) < 1e-2 * step


def test_the_gradient_is_clipped_to_its_norm_and_reported_before():
    batch = selected_batch()
    free, bound, loose = (tiny_model() for _ in range(3))
    start = weights(free)
    norm = one_step(with_sgd(free), batch).gradient_norm
    update = one_step(with_sgd(bound, max_gradient_norm=norm / 10), batch)
    with_sgd(loose, max_gradient_norm=norm * 2).step(batch, reinforce)
    assert update.gradient_norm == pytest.approx(norm, rel=1e-5)
    assert distance(start, weights(free)) == pytest.approx(0.1 * norm, rel=1e-3)
    assert distance(start, weights(bound)) == pytest.approx(0.1 * norm / 10, rel=1e-3)
    assert distance(weights(free), weights(loose)) < 1e-6 * norm


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, {0: 1.0, 5: 1.0, 9: 1.0, 20: 1.0}),
        ("linear", 0, {0: 1.0, 5: 0.5, 9: 0.1, 10: 0.0, 20: 0.0}),
        ("cosine", 0, {0: 1.0, 5: 0.5, 10: 0.0, 20: 0.0, 2: (1 + math.cos(math.pi * 0.2)) / 2}),
        ("constant", 4, {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0, 9: 1.0}),
        ("linear", 2, {0: 0.5, 1: 1.0, 2: 1.0, 6: 0.5, 10: 0.0}),
        ("cosine", 2, {0: 0.5, 1: 1.0, 2: 1.0, 6: 0.5, 10: 0.0}),
        ("linear", 10, {0: 0.1, 9: 1.0, 10: 1.0, 11: 0.0}),
    ],
)
def test_the_learning_rate_over_ten_steps(schedule, warmup, expected):
    for step, factor in expected.items():
        assert learning_rate_factor(step, 10, schedule, warmup) == pytest.approx(factor, abs=1e-12)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_a_run_that_is_made_longer_goes_on_from_where_its_learning_rate_was(schedule):
    before = [learning_rate_factor(step, 7, schedule, 0) for step in range(7)]
    after = [learning_rate_factor(step, 14, schedule, 0, since=6, factor=before[-1]) for step in range(7, 15)]
    factors = before + after
    assert all(later <= earlier for earlier, later in itertools.pairwise(factors)), "never a jump upwards"
    assert after[-1] == pytest.approx(1.0 if schedule == "constant" else 0.0)
    if schedule == "linear":
        assert after == pytest.approx([before[-1] * (1 - step / 8) for step in range(1, 9)])


def test_a_learner_uses_its_schedule():
    model = tiny_model()
    learner = with_sgd(model, schedule="linear", total_steps=4, warmup_steps=2)
    before, sizes, rates = weights(model), [], []
    for _ in range(4):
        update = one_step(learner, selected_batch())
        rates.append(update.learning_rate)
        sizes.append(distance(before, weights(model)) / update.gradient_norm)
        before = weights(model)
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.05])
    assert sizes == pytest.approx(rates, rel=1e-2)


def test_no_episodes_no_move():
    model, batch = tiny_model(), selected_batch()
    learner = Learner(model, SETTINGS)
    before = weights(model)
    assert learner.step(batch.select(torch.zeros(len(batch), dtype=torch.bool)), reinforce) is None
    assert distance(before, weights(model)) == 0
    assert model.version == 0
    assert all(not kept.any() for state in learner.optimizer.state.values() for kept in state.values())


def test_a_gradient_that_is_not_finite_leaves_the_weights_and_the_optimiser_alone():
    model, batch = tiny_model(), selected_batch()
    learner = Learner(model, SETTINGS)
    before = weights(model)
    update = one_step(learner, batch.with_(advantages=batch.advantages * float("inf")))
    assert not math.isfinite(update.gradient_norm)
    assert distance(before, weights(model)) == 0
    assert all(not kept.any() for state in learner.optimizer.state.values() for kept in state.values())
    assert math.isfinite(one_step(learner, batch).gradient_norm), "and the next step is not poisoned"
    assert 0 < distance(before, weights(model)) < float("inf")


def test_the_version_counts_steps_and_the_logprobs_are_those_before_the_step():
    model, batch = tiny_model(), selected_batch()
    learner = Learner(model, replace(SETTINGS, learning_rate=0.01))
    for version in range(3):
        assert model.version == version
        now = learner.logprobs(model, batch)
        torch.testing.assert_close(one_step(learner, batch).logprobs, now, atol=1e-5, rtol=0)
    assert (learner.logprobs(model, batch) - now).abs().max() > 0.01


def test_better_tokens_become_likelier():
    model, batch = tiny_model(), selected_batch()
    learner = Learner(model, replace(SETTINGS, learning_rate=1e-3))
    before = learner.logprobs(model, batch)
    learner.step(batch, reinforce)
    gain = learner.logprobs(model, batch) - before
    assert float((gain * batch.advantages).sum()) > 0


def test_under_lora_the_adapter_moves_and_the_base_does_not():
    network = add_lora(tiny_network(), LoraSettings(rank=4, alpha=8))
    shake_adapter(network)
    model = wrap_network(network, tiny_tokenizer(), torch.device("cpu"), torch.float32, "tiny", has_lora=True)
    before = weights(model)
    learner = Learner(model, replace(SETTINGS, learning_rate=0.01))
    for _ in range(2):
        learner.step(selected_batch(), reinforce)
    for name, weight in weights(model).items():
        assert torch.equal(weight, before[name]) != ("lora_" in name), name
