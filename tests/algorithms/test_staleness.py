"""Asynchronous training on real servers of our own: which groups are learnt from, and how old they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from serving import address, running_servers
from small_tasks import TEST, TRAIN, Remembering, TwoTurns, Uneven, Vowel, chat, rewards

from lmgym.algorithms.reinforce_stable import ReinforceStable, ReinforceStableConfig
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.algorithms.rloo import RLOOConfig
from lmgym.algorithms.sft import SFT, SFTConfig
from lmgym.buffer import Buffer
from lmgym.engines.server.connect import connect
from lmgym.engines.server.engine import NoServerLeftError
from lmgym.envs.env import Env
from lmgym.envs.pipelined_vector_env import PipelinedVectorEnv
from lmgym.envs.vector_env import VectorEnv
from lmgym.errors import UserError
from lmgym.policies.chat_policy import ChatPolicy
from lmgym.runs.run import Run
from lmgym.types import Episode


def config(max_staleness: int, **given) -> ReinforceStableConfig:
    start = {"iterations": 6, "problems_per_iteration": 3, "group_size": 4, "learning_rate": 1e-3, "eval_problems": 0}
    settings = {**start, "schedule": "constant", "save_every": 0, "max_staleness": max_staleness, **given}
    return ReinforceStableConfig.from_settings(settings)


def on_servers(servers, folder: Path) -> ChatPolicy:
    policy = chat()
    policy.engine = connect("vllm", [address(server) for server in servers], policy.model, folder)
    return policy


def trained(max_staleness: int, folder: Path, env: Env | None = None, **given) -> RLAlgorithm:
    with running_servers(size=32) as servers:
        algorithm = ReinforceStable(
            on_servers(servers, folder),
            env or TwoTurns(TRAIN),
            config(max_staleness, **given),
            Vowel(TEST),
            Remembering(),
        )
        algorithm.train()
    return algorithm


def played(envs: VectorEnv, policy: ChatPolicy, problems: list[int]) -> list[Episode]:
    buffer = Buffer()
    envs.reset(problems, 3, seed=5)
    while states := envs.states:
        buffer.add(envs.step(policy.next_actions(states)))
    return buffer.of_iteration(0)


def test_without_staleness_the_pipeline_plays_the_same_episodes():
    problems, policy = [4, 1, 6], chat()
    pipelined = PipelinedVectorEnv(Uneven(TRAIN), groups=3, oldest_version=lambda: 0)
    assert played(pipelined, policy, problems) == played(VectorEnv(Uneven(TRAIN)), policy, problems)


def test_a_group_that_is_too_old_is_dropped_and_its_problem_is_sampled_again():
    policy, oldest = chat(), [1]
    envs = PipelinedVectorEnv(TwoTurns(TRAIN), groups=2, oldest_version=lambda: oldest[0])
    envs.reset([4, 1], 3, seed=5)
    buffer = Buffer()
    while (states := envs.states) and envs.dropped_groups < 2:
        buffer.add(envs.step(policy.next_actions(states)))
    assert not buffer.episodes
    policy.model.version = 1
    while states := envs.states:
        buffer.add(envs.step(policy.next_actions(states)))
    episodes = buffer.of_iteration(0)
    assert Counter(episode.problem.id for episode in episodes) == {"4": 3, "1": 3}
    assert {episode.policy_version for episode in episodes} == {1}
    assert {episode.group for episode in episodes} == {2, 3}


@pytest.mark.parametrize("max_staleness", [1, 3])
def test_every_iteration_learns_from_its_number_of_groups_that_are_new_enough(max_staleness, tmp_path):
    algorithm = trained(max_staleness, tmp_path)
    for iteration in range(6):
        episodes = algorithm.buffer.of_iteration(iteration)
        sizes = Counter(episode.group for episode in episodes)
        assert list(sizes.values()) == [4] * 3
        assert min(episode.policy_version for episode in episodes) >= max(0, iteration - max_staleness)
        assert max(episode.policy_version for episode in episodes) <= iteration
    assert isinstance(algorithm.run, Remembering)
    history = algorithm.run.history
    assert any(row["staleness"] > 0 for row in history)
    assert all(row["moved_requests"] == 0 for row in history)
    assert all(row["staleness"] <= max_staleness for row in history)
    assert all(row["logprob_diff"] < 1e-4 for row in history)


def test_each_group_is_learnt_from_once(tmp_path):
    algorithm = trained(2, tmp_path)
    assert max(Counter(episode.steps[0].state.episode for episode in algorithm.buffer.episodes).values()) == 1


def test_it_learns_while_it_samples(tmp_path):
    settings = {"iterations": 25, "group_size": 16, "problems_per_iteration": 4, "learning_rate": 5e-3}
    algorithm = trained(1, tmp_path, Vowel(TRAIN), **settings)
    found = rewards(algorithm)
    assert sum(found[-5:]) / 5 > sum(found[:5]) / 5 + 0.2


def test_evaluations_in_between_leave_the_episodes_alone(tmp_path):
    algorithm = trained(1, tmp_path, evaluate_every=2, eval_problems=4)
    assert sorted(algorithm.evaluator.evaluations) == [0, 2, 4, 6]
    assert len(algorithm.buffer.episodes) == 6 * 12


def test_a_run_whose_servers_are_gone_is_saved_and_goes_on_later(tmp_path, monkeypatch):
    """The servers end in the second iteration; the run resumes with others."""
    monkeypatch.setattr("lmgym.engines.server.engine.NO_SERVER_SECONDS", 0.5)

    class Ending(TwoTurns):
        answers = 0

        def respond(self, state, text, finish):
            Ending.answers += 1
            if Ending.answers == 40:
                for server in servers:
                    server.shutdown()
                    server.server_close()
            return super().respond(state, text, finish)

    with running_servers(size=32) as servers:
        policy = on_servers(servers, tmp_path / "weights")
        algorithm = ReinforceStable(policy, Ending(TRAIN), config(0), None, Run(tmp_path / "run"))
        with pytest.raises(NoServerLeftError, match="no server is left"):
            algorithm.train()
    reached = algorithm.iteration
    assert 0 < reached < 6
    with running_servers(size=32) as servers:
        policy = on_servers(servers, tmp_path / "weights")
        again = ReinforceStable(policy, TwoTurns(TRAIN), config(0), None, Run(tmp_path / "run"))
        again.run.resume(again)
        assert again.iteration == reached
        again.train()
    assert (tmp_path / "run" / "results.json").exists()


def test_staleness_needs_servers_and_importance_weights(tmp_path):
    with pytest.raises(UserError, match="--max_staleness needs servers"):
        ReinforceStable(chat(), Vowel(TRAIN), config(1))
    env = Vowel([replace(problem, solution="a") for problem in TRAIN])
    with running_servers(size=32) as servers:
        policy = on_servers(servers, tmp_path)
        with pytest.raises(UserError, match="others sample"):
            SFT(policy, env, SFTConfig.from_settings({"max_staleness": 1}))
    with pytest.raises(UserError, match="--tis_cap"):
        RLOOConfig.from_settings({"max_staleness": 1}).check()
    with pytest.raises(UserError, match="--curriculum"):
        config(1, curriculum=True).check()
