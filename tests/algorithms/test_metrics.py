"""The warning of an iteration without a learning signal, and the KL of stale episodes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hand_made import Turn, make_episode
from tabular import SEQUENCES, after_prompt, batch_of, logprobs_of, table

from lmgym.algorithms.metrics import measured_kl, without_signal
from lmgym.learning.learner import Update
from lmgym.types import Episode


def episode(reward: float, *, group: int = 0, cut: bool = False, **graded: bool) -> Episode:
    made = make_episode(Turn([1], [2], [1], reward), group=group)
    last = made.steps[-1]
    action = replace(last.action, finish="length" if cut else "stop")
    return replace(made, steps=(replace(last, action=action, info=dict(graded)),))


@pytest.mark.parametrize(
    ("episodes", "says"),
    [
        (
            [episode(0.0, cut=True)] * 47 + [episode(0.0)] * 3,
            ["all 50 rewards are 0", "94% were cut off", "--max_tokens"],
        ),
        ([episode(0.0, parsed=False)] * 3 + [episode(0.0, parsed=True)], ["all 4 rewards are 0", "75% no answer"]),
        ([episode(1.0)] * 4, ["all 4 rewards are 1", "harder"]),
        ([episode(1.0, cut=True)] * 4, ["all 4 rewards are 1", "harder"]),
        ([episode(0.1)] * 4, ["all 4 rewards are 0.1", "some episodes succeed"]),
        ([episode(0.1, cut=True)] * 4, ["all 4 rewards are 0.1", "100% were cut off"]),
        ([episode(0.5, correct=True)] * 2 + [episode(0.5, correct=False)] * 2, ["all 4 rewards are 0.5", "harder"]),
        (
            [episode(1.0, correct=True)] + [episode(1.0, correct=False)] * 2,
            ["all 3 rewards are 1", "some episodes succeed"],
        ),
        ([episode(0.0)] * 2 + [episode(1.0, group=1)] * 2, ["within each group", "--group_size"]),
        ([episode(0.0)] * 2, ["all 2 rewards are 0", "some episodes succeed"]),
    ],
)
def test_the_sentence_names_the_rewards_and_the_likely_cause(episodes, says):
    sentence = without_signal(episodes)
    assert all(part in sentence for part in says), sentence


def test_the_kl_of_stale_samples_is_that_of_the_policy():
    """Every sequence once is what a uniform policy samples; the KL of the first token is then exact."""
    every = range(len(SEQUENCES))
    policy, reference = 3 * table(0), table(1)
    batch = batch_of(every, torch.zeros(len(SEQUENCES), 1), 0 * policy, reference)
    mask = batch.mask.clone()
    mask[:, 2:] = False
    batch = batch.with_(mask=mask)
    logprobs = after_prompt(logprobs_of(policy, every))
    update = Update(logprobs, torch.zeros_like(logprobs), 0.0, 0.0, 0.0)
    right = policy[0].log_softmax(-1)
    exact = (right.exp() * (right - reference[0].log_softmax(-1))).sum()
    assert measured_kl(update, batch, batch) == pytest.approx(float(exact), rel=1e-4)
