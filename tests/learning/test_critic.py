"""A critic that is saved and read back is the same critic, and goes on learning the same way."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_model
from hand_made import Turn, make_episode

from lmgym.learning.batch import Batch
from lmgym.learning.critic import Critic, make_value_head
from lmgym.learning.learner import Learner, LearnerSettings
from lmgym.losses import per_token
from lmgym.models.distribution import FULL_SOFTMAX
from lmgym.models.token_scorer import Scores

SETTINGS = LearnerSettings(
    learning_rate=1e-2,
    schedule="constant",
    warmup_steps=0,
    total_steps=50,
    max_gradient_norm=1e9,
    micro_batch_tokens=10**6,
    distribution=FULL_SOFTMAX,
)
EPISODES = [make_episode(Turn([5, 6, 7 + row], [8, 9], [1, 1], float(row % 2)), group=row) for row in range(4)]
BATCH = Batch.from_episodes(EPISODES)
BATCH = BATCH.with_(value_targets=BATCH.at_every_token(BATCH.returns))


def squared(scores: Scores, batch: Batch) -> torch.Tensor:
    return per_token((scores.values - batch.value_targets).square(), batch)


def critic(alone: bool, seed: int = 0) -> Critic:
    model = tiny_model(seed=seed)
    return Critic(Learner(model, SETTINGS, make_value_head(model), reads_vocabulary=not alone), alone)


def test_a_new_critic_expects_nothing_and_learns_what_to_expect():
    one = critic(alone=True)
    assert not one.values(BATCH)[0].any()
    before = (one.values(BATCH)[0] - BATCH.value_targets)[BATCH.mask].square().mean()
    for _ in range(20):
        one.learner.step(BATCH, squared)
    after = (one.values(BATCH)[0] - BATCH.value_targets)[BATCH.mask].square().mean()
    assert after < 0.3 * before


@pytest.mark.parametrize("alone", [True, False])
def test_saved_and_read_back_it_is_the_same(tmp_path, alone):
    one, other = critic(alone), critic(alone, seed=0 if not alone else 3)
    one.learner.step(BATCH, squared)
    one.save(tmp_path / "critic.safetensors")
    other.load(tmp_path / "critic.safetensors")
    if alone:
        assert torch.equal(one.values(BATCH)[0], other.values(BATCH)[0])
        for each in (one, other):
            each.learner.step(BATCH, squared)
        assert torch.equal(one.values(BATCH)[0], other.values(BATCH)[0])
        assert one.learner.steps_done == other.learner.steps_done == 2
    else:
        assert one.learner.value_head is not None
        assert other.learner.value_head is not None
        for mine, theirs in zip(
            one.learner.value_head.parameters(), other.learner.value_head.parameters(), strict=True
        ):
            assert torch.equal(mine, theirs)


def test_the_value_after_the_last_token_is_that_before_one_more():
    """Whatever token follows: a value is seen before it."""
    one = critic(alone=True)
    for _ in range(5):
        one.learner.step(BATCH, squared)
    longer = [make_episode(Turn([5, 6, 7 + row], [8, 9, 40 + row], [1, 1, 1]), group=row) for row in range(4)]
    ragged = [make_episode(Turn([5], [6], [1]), group=9), *longer]
    before, after = one.values(Batch.from_episodes(EPISODES))
    assert after.abs().min() > 1e-3
    torch.testing.assert_close(after, one.values(Batch.from_episodes(longer))[0][:, 5], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(after, one.values(Batch.from_episodes(ragged))[0][1:, 5], atol=1e-5, rtol=1e-4)
    assert before.shape == BATCH.mask.shape
