"""PPO by hand: bootstrapped truncation, and minibatches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_tasks import TRAIN, Remembering, Vowel, chat
from tabular import SEQUENCES, batch_of, make_algorithm, set_critic, table

from lmgym.algorithms.ppo import PPO, PPOConfig
from lmgym.envs.arithmetic import ArithmeticEnv
from lmgym.envs.env import Env, Response
from lmgym.errors import UserError
from lmgym.types import Finish, State

REWARDS = torch.rand(len(SEQUENCES), 2, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
VALUES = torch.tensor([[0, 0.3, 0.5], [0, 0.1, 0.9]], dtype=torch.float64)
SMALL: dict[str, Any] = {"iterations": 1, "eval_problems": 0, "problems_per_iteration": 5, "group_size": 4}
SMALL["learning_rate"] = 1e-3


@pytest.mark.parametrize("gae", ["tokens", "steps"])
def test_a_truncated_episode_goes_on_with_the_value_after_its_last_token(gae):
    """Two steps of one token each, so both ways of looking ahead agree; only the second episode was truncated."""
    discount, gae_lambda, after = 0.9, 0.5, 0.7
    episodes = batch_of((0, 3), REWARDS, table(0), two_steps=True)
    episodes = episodes.with_(truncated=torch.tensor([False, True]))
    algorithm = make_algorithm("ppo", gae=gae, gae_lambda=gae_lambda, discount=discount, advantage_norm="none")
    set_critic(algorithm, lambda _: VALUES, after)
    prepared = algorithm.prepare(episodes)
    ends = torch.tensor([0.0, after], dtype=torch.float64)
    last = episodes.rewards[:, 1] + discount * ends - VALUES[:, 2]
    first = episodes.rewards[:, 0] + discount * VALUES[:, 2] - VALUES[:, 1] + discount * gae_lambda * last
    assert torch.allclose(prepared.advantages[:, 1:], torch.stack([first, last], dim=1))
    assert torch.allclose(prepared.value_targets[:, 1:], torch.stack([first, last], dim=1) + VALUES[:, 1:])


@pytest.mark.parametrize("final", [False, True])
def test_a_truncated_episode_is_bootstrapped_unless_its_outcome_was_rewarded(final):
    class Endless(Env):
        """Two turns and then no more; even problems end by themselves."""

        def respond(self, state: State, text: str, finish: Finish) -> Response:
            over = state.turn == 2
            natural = int(state.problem.id) % 2 == 0
            info = {"final": True} if over and final else {}
            return Response(0.0, reply="on", terminated=over and natural, truncated=over and not natural, info=info)

    algorithm = PPO(chat(), Endless(TRAIN), PPOConfig.from_settings(SMALL), None, Remembering())
    seen, prepare = [], algorithm.prepare
    algorithm.prepare = lambda batch: seen.append(batch) or prepare(batch)
    algorithm.train()
    algorithm.iteration = 0
    problems = [TRAIN[index] for index in algorithm.next_problems()]
    odd = [int(problem.id) % 2 == 1 for problem in problems for _ in range(4)]
    assert [episode.steps[-1].truncated for episode in algorithm.buffer.of_iteration(0)] == odd
    assert seen[0].truncated.tolist() == ([False] * len(odd) if final else odd)


def test_a_maths_answer_that_ran_out_of_tokens_is_truncated_and_not_bootstrapped():
    algorithm = PPO(chat(), ArithmeticEnv(), PPOConfig.from_settings(SMALL), None, Remembering())
    seen, prepare = [], algorithm.prepare
    algorithm.prepare = lambda batch: seen.append(batch) or prepare(batch)
    algorithm.train()
    last = [episode.steps[-1] for episode in algorithm.buffer.of_iteration(0)]
    assert sum(step.truncated and step.action.finish == "length" for step in last) > len(last) / 2
    assert not bool(seen[0].truncated.any())


def steps_of(**given) -> tuple[PPO, list]:
    algorithm = PPO(chat(), Vowel(TRAIN), PPOConfig.from_settings({**SMALL, **given}), None, Remembering())
    seen, step = [], algorithm.learner.step
    algorithm.learner.step = lambda batch, loss: seen.append(batch) or step(batch, loss)
    algorithm.train()
    return algorithm, seen


@pytest.mark.parametrize("critic", ["head", "model"])
def test_every_pass_deals_all_groups_anew_and_each_minibatch_counts_itself(critic):
    algorithm, seen = steps_of(minibatches=2, updates_per_iteration=3, critic=critic)
    assert len(seen) == 6
    passes = [seen[start : start + 2] for start in (0, 2, 4)]
    for parts in passes:
        groups = [part.group.unique().tolist() for part in parts]
        assert sorted(number for part in groups for number in part) == [0, 1, 2, 3, 4]
        assert sorted(map(len, groups)) == [2, 3]
        for part in parts:
            assert (part.total_episodes, part.total_tokens) == (len(part), int(part.mask.sum()))
            assert len(part) == 4 * len(part.group.unique())
    assert len({tuple(part.group.tolist()) for parts in passes for part in parts}) > 2, "another deal in each pass"
    assert algorithm.learner.steps_done == algorithm.learner.settings.total_steps == 6
    assert algorithm.critic.learner.steps_done == 6


def test_all_minibatches_are_against_the_policy_as_it_was_before_the_first():
    _, seen = steps_of(minibatches=5)
    whole, _ = steps_of(minibatches=1)
    for part in seen:
        assert not bool(part.on_policy.any())
        torch.testing.assert_close(part.old_logprobs, part.logprobs, atol=1e-4, rtol=0)
    parts, _ = steps_of(minibatches=5)
    assert isinstance(whole.run, Remembering)
    assert isinstance(parts.run, Remembering)
    assert whole.run.history[0].keys() == parts.run.history[0].keys()


def test_the_deal_is_a_function_of_its_seed():
    batch = batch_of(range(8), REWARDS, table(0), group=[0, 0, 1, 1, 2, 2, 3, 3])
    deals = [[p.group.tolist() for p in batch.minibatches(2, np.random.default_rng(seed))] for seed in (1, 1, 2, 3)]
    assert deals[0] == deals[1]
    assert len({str(deal) for deal in deals}) > 1
    assert len(batch.minibatches(9, np.random.default_rng(0))) == 4


@pytest.mark.parametrize("count", [0, 6])
def test_more_minibatches_than_groups_are_refused(count):
    with pytest.raises(UserError, match="--minibatches"):
        PPOConfig.from_settings({**SMALL, "minibatches": count}).check()
