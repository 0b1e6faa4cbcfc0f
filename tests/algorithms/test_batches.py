"""What the loop puts into a batch, and into which distribution, beside what was sampled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import tiny_model
from hand_made import plain_network, plain_scores
from small_tasks import TRAIN, Remembering, TwoTurns, Vowel, chat

from lmgym.algorithms.registry import find_algorithm
from lmgym.envs.arithmetic import ArithmeticEnv
from lmgym.envs.env import Env
from lmgym.policies.chat_policy import ChatPolicy
from lmgym.policies.few_shot_llm_stepwise_math_policy import FewShotLLMStepwiseMathPolicy

SMALL: dict[str, Any] = {"iterations": 1, "problems_per_iteration": 2, "group_size": 2, "eval_problems": 0}


def first_step(name: str, env: Env, policy=None, **given):
    """The first batch that a run learns from, and what the learner saw of it."""
    kind, seen = find_algorithm(name), []
    algorithm = kind(policy or chat(), env, kind.Config.from_settings({**SMALL, **given}), None, Remembering())
    step = algorithm.learner.step
    algorithm.learner.step = lambda batch, loss: seen.append((batch, step(batch, loss))) or seen[-1][1]
    algorithm.train()
    return seen[0]


@pytest.mark.parametrize(
    ("env", "stepwise", "limit"),
    [
        (Vowel(TRAIN), False, 4),
        (TwoTurns(TRAIN), False, 4),  # it does not say how many turns there are
        (ArithmeticEnv(stepwise=True, max_steps=3), True, 12),
        (ArithmeticEnv(stepwise=True, max_steps=3), False, 4),  # a chat policy's action is the whole answer
        (ArithmeticEnv(stepwise=False, max_steps=3), True, 4),
        (ArithmeticEnv(stepwise=True, max_steps=10**6), True, 2048),
    ],
    ids=["one turn", "unknown", "lines", "chat", "not in lines", "context"],
)
def test_a_constant_average_divides_by_the_completion_limit(env, stepwise, limit):
    lines = FewShotLLMStepwiseMathPolicy(tiny_model(size=32), max_line_tokens=4)
    algorithm = find_algorithm("dr-grpo")(
        lines if stepwise else chat(), env, find_algorithm("dr-grpo").Config.from_settings(SMALL)
    )
    assert algorithm.policy.longest_episode(env) == limit


def test_the_limit_reaches_every_loss():
    batch, update = first_step("rloo", Vowel(TRAIN), problems_per_iteration=4, group_size=16)
    assert batch.length_limit == 4
    exact = -(batch.advantages * update.logprobs * batch.mask).sum() / 64 / 4
    assert update.loss == pytest.approx(exact.item(), rel=1e-4)


@pytest.mark.parametrize(("temperature", "top_k"), [(0.5, 0), (1.0, 3)])
def test_sft_is_maximum_likelihood_however_the_policy_samples(temperature, top_k):
    model = tiny_model(size=32)
    twin = plain_network(model)
    policy = ChatPolicy(model, (), "", max_tokens=4, temperature=temperature, top_k=top_k)
    batch, update = first_step("sft", Vowel([replace(problem, solution="a") for problem in TRAIN]), policy)
    with torch.no_grad():
        exact, _ = plain_scores(twin, batch.tokens, batch.mask, 1.0)
    torch.testing.assert_close(update.logprobs, exact, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("top_k", "kl_coeff", "warned"), [(3, 0.1, True), (0, 0.1, False), (3, 0.0, False)])
def test_a_kl_of_a_truncated_distribution_is_said_to_be_approximate(top_k, kl_coeff, warned):
    policy = ChatPolicy(tiny_model(size=32), (), "", max_tokens=4, top_k=top_k)
    run, kind = Remembering(), find_algorithm("grpo")
    kind(policy, Vowel(TRAIN), kind.Config.from_settings({"kl_coeff": kl_coeff, **SMALL}), None, run)
    assert [("--top_k" in warning) for warning in run.warnings] == [True] * warned
