"""The KL of an update, and the limit to it, of real updates of a tiny model."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_model
from small_tasks import TRAIN, Remembering, Vowel
from torch import Tensor

from lmgym.advantages import leave_one_out
from lmgym.algorithms.parts import UpdateLimit
from lmgym.algorithms.rloo import RLOO, RLOOConfig
from lmgym.algorithms.trust_region import EPISODES, TrustRegion
from lmgym.learning.batch import Batch
from lmgym.policies.chat_policy import ChatPolicy


def updated(max_update_kl: float = 0.0) -> tuple[RLOO, dict[str, Tensor], dict[str, float]]:
    """An algorithm after one update, its weights before that, and the metrics."""
    run = Remembering()
    limit = UpdateLimit(max_update_kl)
    config = RLOOConfig(
        1, problems_per_iteration=4, group_size=2, learning_rate=1e-2, eval_problems=0, update_limit=limit
    )
    algorithm = RLOO(ChatPolicy(tiny_model(), max_tokens=3), Vowel(TRAIN), config, run=run)
    before = {name: weight.detach().clone() for name, weight in algorithm.learner.parameters().items()}
    algorithm.train()
    return algorithm, before, run.history[0]


def kl_by_hand(algorithm: RLOO, before: dict[str, Tensor]) -> float:
    """From the log-probs of the learnt episodes under the weights now and those of before."""
    batch = Batch.from_episodes(algorithm.buffer.of_iteration(0))
    learnt = batch.select(leave_one_out(batch.returns, batch.group) != 0)
    assert 0 < len(learnt) <= EPISODES
    after = algorithm.learner.logprobs(algorithm.policy.model, learnt)
    algorithm.learner.set_weights(before)
    ratio = (after - algorithm.learner.logprobs(algorithm.policy.model, learnt))[learnt.mask]
    return float((ratio.exp() - 1 - ratio).mean())


def test_the_kl_of_an_update_is_between_the_policies_before_and_after_it():
    algorithm, before, metrics = updated()
    assert metrics["update_kl"] > 1e-2
    assert "update_scale" not in metrics
    assert metrics["update_kl"] == pytest.approx(kl_by_hand(algorithm, before), rel=1e-3)


def test_a_limited_update_keeps_its_direction_and_stays_within_the_limit():
    free, before, _ = updated()
    limited, same, metrics = updated(max_update_kl=1e-3)
    assert 0 < metrics["update_scale"] < 1
    for name, weight in limited.learner.parameters().items():
        assert torch.equal(before[name], same[name])
        whole = free.learner.parameters()[name].detach() - before[name]
        assert torch.allclose(weight.detach() - same[name], metrics["update_scale"] * whole, atol=1e-6)
    assert 3e-4 < metrics["update_kl"] <= 1e-3
    assert metrics["update_kl"] == pytest.approx(kl_by_hand(limited, same), rel=1e-2)


def test_an_update_within_the_limit_is_left_alone():
    free, _, _ = updated()
    limited, _, metrics = updated(max_update_kl=100.0)
    assert metrics["update_scale"] == 1.0
    for name, weight in limited.learner.parameters().items():
        assert torch.equal(weight, free.learner.parameters()[name])


def test_a_kl_that_is_not_finite_leaves_finite_weights(monkeypatch):
    """The first measurement overflows, as that of a huge step may; the next is of a tenth of it."""
    measured, found = TrustRegion._kl, [float("nan"), float("inf")]
    monkeypatch.setattr(TrustRegion, "_kl", lambda *given: found.pop(0) if found else measured(*given))
    limited, _, metrics = updated(max_update_kl=100.0)
    assert metrics["update_scale"] == pytest.approx(0.01)
    assert all(weight.isfinite().all() for weight in limited.learner.parameters().values())
