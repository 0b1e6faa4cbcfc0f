"""The real model: what the sampler and the learner say of the same real episodes."""

from __future__ import annotations

import pytest
import torch

import lmgym
from lmgym.algorithms.reinforce import Reinforce, ReinforceConfig
from lmgym.buffer import Buffer
from lmgym.envs.examples import few_shot_examples
from lmgym.envs.vector_env import VectorEnv
from lmgym.learning.batch import Batch
from lmgym.models.loading import load_model
from lmgym.models.token_scorer import TokenScorer, common_prefix
from lmgym.policies.few_shot_llm_stepwise_math_policy import FewShotLLMStepwiseMathPolicy

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def policy() -> FewShotLLMStepwiseMathPolicy:
    model = load_model("smollm2-135m", dtype="float32")
    return FewShotLLMStepwiseMathPolicy(model, few_shot_examples(lmgym.make("gsm8k"), 2), temperature=0.8)


@pytest.fixture(scope="module")
def batch(policy) -> Batch:
    """Real GSM8K episodes, several lines each, with the calculator on."""
    envs, buffer = VectorEnv(lmgym.make("gsm8k", max_steps=4)), Buffer()
    states = envs.reset([0, 1], 4, seed=5)
    while states:
        steps = envs.step(policy.get_actions(states))
        buffer.add(steps)
        states = [step.next_state for step in steps if not step.done]
    assert any(0 in step.action.mask for episode in buffer.episodes for step in episode.steps), "no calculator call"
    assert any(len(episode.steps) > 1 for episode in buffer.episodes)
    return Batch.from_episodes(list(buffer.episodes))


def test_sampler_and_learner_agree_on_real_episodes_with_the_calculator(policy, batch):
    scorer = TokenScorer(policy.model, common_prefix(batch.tokens, batch.mask, batch.lengths), policy.distribution)
    assert scorer.prefix_length > 200, "the few-shot part is shared"
    with torch.no_grad():
        logprobs = scorer.score(batch.tokens, batch.mask, batch.lengths).logprobs
    assert (logprobs - batch.logprobs)[batch.mask].abs().max() < 1e-4


def test_one_update_on_real_episodes_moves_the_policy_towards_its_rewards(policy, batch):
    """Whatever the rewards are: after a step up their gradient, better episodes are likelier against worse ones."""
    algorithm = Reinforce(policy, lmgym.make("gsm8k"), ReinforceConfig(learning_rate=2e-6, eval_problems=0))
    sign = torch.where(torch.arange(len(batch)) % 2 == 0, 1.0, -1.0)
    rewarded = batch.with_(advantages=sign[:, None] * batch.mask)
    before = algorithm.learner.logprobs(policy.model, rewarded)
    algorithm.learner.step(rewarded, algorithm.loss)
    after = algorithm.learner.logprobs(policy.model, rewarded)
    assert (sign[:, None] * (after - before)).sum() > 0
