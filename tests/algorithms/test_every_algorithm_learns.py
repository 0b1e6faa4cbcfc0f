"""Every algorithm makes a tiny model clearly better, in seconds, through the whole of the real loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import tiny_model
from small_tasks import TRAIN, Remembering, TwoTurns, Vowel, chat, rewards

from lmgym.algorithms.catalogue import ALGORITHMS
from lmgym.algorithms.registry import find_algorithm
from lmgym.commands.train import load_buffer
from lmgym.envs.env import Response
from lmgym.errors import UserError
from lmgym.evaluation.evaluation import evaluate
from lmgym.learning.batch import Batch
from lmgym.types import Problem

SOLVED = [replace(problem, solution="a") for problem in TRAIN]
COMMON: dict[str, Any] = {
    "iterations": 15,
    "problems_per_iteration": 4,
    "group_size": 16,
    "learning_rate": 5e-3,
    "schedule": "constant",
    "eval_problems": 0,
    "save_every": 0,
}
SPECIAL: dict[str, dict] = {
    "sft": {"group_size": 1, "problems_per_iteration": 8},
    "remax": {"group_size": 1, "problems_per_iteration": 64},
    "ppo": {"value_coeff": 0.5},
    "dpo": {"iterations": 30},
    "gspo": {"updates_per_iteration": 2},
}


def accuracy(policy, env) -> float:
    return evaluate(policy, env, range(8), samples=16, temperature=1.0, seed=3).mean_reward


def alarms(algorithm) -> list[str]:
    """Warnings but for those of an iteration in which everything was right already."""
    return [warning for warning in algorithm.run.warnings if "no learning signal" not in warning]


@pytest.fixture(scope="module")
def teacher():
    """A policy that has learnt the task already."""
    return train("reinforce").policy


def train(name: str, env=None, policy=None, **given):
    kind = find_algorithm(name)
    extra = {"ref_policy": given.pop("ref_policy")} if "ref_policy" in given else {}
    settings = {**COMMON, **SPECIAL.get(name, {}), **given}
    algorithm = kind(
        policy or chat(), env or Vowel(SOLVED), kind.Config.from_settings(settings), None, Remembering(), **extra
    )
    algorithm.train()
    return algorithm


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "distill"])
def test_it_learns(name):
    env = Vowel(SOLVED)
    before = accuracy(chat(), env)
    algorithm = train(name, env)
    assert before < 0.35
    assert accuracy(algorithm.policy, env) > 0.8
    assert not alarms(algorithm)


@pytest.mark.parametrize(
    "given",
    [{"samples": "student"}, {"samples": "teacher"}, {"samples": "student", "reward_coeff": 1.0, "kl_coeff": 0.1}],
    ids=["student", "teacher", "mixed"],
)
def test_a_student_learns_from_a_teacher(teacher, given):
    env = Vowel(SOLVED)
    student = chat(tiny_model(size=32, seed=1))
    assert accuracy(student, env) < 0.35
    algorithm = train("distill", env, student, ref_policy=teacher, teacher="teacher", **given)
    assert accuracy(algorithm.policy, env) > 0.7
    assert not alarms(algorithm)


@pytest.mark.parametrize("name", ["dpo", "expert-iteration"])
def test_episodes_that_exist_are_enough(name, tmp_path):
    """No episodes are sampled: the policy learns only from the replayed episodes of another run."""
    kind, env = find_algorithm(name), Vowel(SOLVED)
    played = train("reinforce", env, iterations=16, problems_per_iteration=8, group_size=4, learning_rate=1e-9)
    played.buffer.save(tmp_path / "episodes.jsonl")
    offline = {"iterations": 30, "problems_per_iteration": 0, "replay_episodes": 64}
    algorithm: Any = kind(chat(), env, kind.Config.from_settings({**COMMON, **offline}), None, Remembering())
    load_buffer(algorithm, tmp_path / "episodes.jsonl")
    algorithm.train()
    batch = Batch.from_episodes(played.buffer.episodes)
    gained = (algorithm.learner.logprobs(algorithm.policy.model, batch) - batch.logprobs).sum(dim=1)
    assert gained[batch.returns > 0].mean() > gained[batch.returns == 0].mean() + 2, "the good over the bad ones"
    assert [episode.tokens for episode in algorithm.buffer.episodes] == [e.tokens for e in played.buffer.episodes]
    assert all(metrics["tokens"] == 0 and 0 < metrics["reward"] < 1 for metrics in algorithm.run.history)


def test_without_any_episodes_there_is_nothing_to_learn_from():
    with pytest.raises(UserError, match="--load_episodes"):
        train("dpo", problems_per_iteration=0, replay_episodes=8)


def test_with_a_restart_each_iteration_learns_from_the_first_model():
    """After several iterations the policy is where the last one's episodes alone take the first model."""
    kept = {"restart": True, "updates_per_iteration": 5, "iterations": 4}
    last = train("expert-iteration", **kept)
    alone = find_algorithm("expert-iteration")(
        chat(), Vowel(SOLVED), replace(last.config, iterations=1, problems_per_iteration=0, replay_episodes=64)
    )
    alone.replay.sample = lambda iteration: last.buffer.of_iteration(3)
    alone.train()
    weights = alone.policy.model.trainable()
    assert all(torch.equal(weight, weights[name]) for name, weight in last.policy.model.trainable().items())
    assert min(rewards(last)[1:]) > rewards(last)[0] + 0.1


@pytest.mark.parametrize("critic", ["head", "model"])
@pytest.mark.parametrize("gae", ["tokens", "steps"])
def test_ppo_learns_two_turns_with_either_critic(critic, gae):
    algorithm = train("ppo", TwoTurns(TRAIN), critic=critic, gae=gae, iterations=20, critic_learning_rate=5e-3)
    assert rewards(algorithm)[0] < 0.4
    assert sum(rewards(algorithm)[-3:]) / 3 > 0.75


def test_the_critic_comes_to_know_what_to_expect():
    """Always rewarded, so the value of every state is 1, whatever the policy does."""

    class Certain(Vowel):
        def respond(self, state, text, finish):
            return replace(super().respond(state, text, finish), reward=1.0)

    algorithm = train("ppo", Certain(TRAIN), critic="model", iterations=25, critic_learning_rate=1e-2, value_clip=0.0)
    batch = Batch.from_episodes(algorithm.buffer.of_iteration(24))
    values = algorithm.critic.values(batch)[0][batch.mask]
    assert (values - 1).abs().mean() < 0.1


@pytest.mark.parametrize(
    "given",
    [
        {"entropy_coeff": 0.05},
        {"kl_coeff": 0.02, "kl_target": 0.05},
        {"advantage_norm": "batch"},
        {"averaging": "constant"},
        {"filter_groups": True},
        {"curriculum": True},
        {"tis_cap": 2.0, "replay_episodes": 32},
    ],
    ids=lambda given: "-".join(given),
)
def test_the_choices_that_cut_across_leave_it_learning(given):
    assert sum(rewards(train("reinforce", **given))[-3:]) / 3 > 0.75


def test_an_entropy_bonus_keeps_the_entropy_up():
    """With no reward to gain, only the bonus moves the policy."""

    class Nothing(Vowel):
        def respond(self, state, text, finish):
            return replace(super().respond(state, text, finish), reward=0.0)

    peaked = tiny_model(size=32)
    with torch.no_grad():
        peaked.head.get_parameter("weight").mul_(2)
    algorithm = train("reinforce", Nothing(TRAIN), chat(peaked), entropy_coeff=0.1, iterations=8)
    entropies = [metrics["entropy"] for metrics in algorithm.run.history]
    assert entropies[-1] > entropies[0] + 0.3


def test_an_adaptive_kl_comes_nearer_to_its_target_than_a_fixed_one():
    target, given = 0.3, {"kl_coeff": 0.05, "tis_cap": 2.0, "iterations": 40}
    fixed = train("reinforce", **given)
    moved = train("reinforce", kl_target=target, **given)
    last = [run.run.history[-1]["kl"] for run in (fixed, moved)]
    assert abs(last[1] - target) < 0.5 * abs(last[0] - target)
    assert moved.kl_coeff == moved.state["kl_coeff"] != 0.05


def test_dapo_resamples_until_enough_groups_are_informative():
    class Rare(Vowel):
        """Fifteen problems in sixteen have reward 0 for every answer."""

        def respond(self, state, text, finish):
            response = super().respond(state, text, finish)
            return response if int(state.problem.id) % 16 == 0 else replace(response, reward=0.0)

    problems = [Problem(str(index), f"Q{index}", "a") for index in range(64)]
    algorithm = train("dapo", Rare(problems), iterations=1, max_resample_rounds=3)
    episodes = algorithm.buffer.of_iteration(0)
    assert len(episodes) == 3 * 4 * 16
    assert len({episode.group for episode in episodes}) == 12
    assert len({episode.problem.id for episode in episodes}) == 12
    content = train("dapo", iterations=1)
    assert len(content.buffer.of_iteration(0)) == 4 * 16


class Alike(Vowel):
    """Every episode earns the same, but they are one or two turns long."""

    def respond(self, state, text, finish):
        over = state.turn == 2 or self.np_random.random() < 0.5
        return Response(float(over), terminated=over)


def test_dapo_counts_the_groups_that_differ_in_length_alone():
    """With a penalty for length they are informative, so no other problems are sampled; without one they are not."""
    for given, played in (({"soft_length": 4, "hard_length": 8}, 1), ({}, 3)):
        algorithm = train("dapo", Alike(TRAIN), iterations=1, max_resample_rounds=3, problems_per_iteration=2, **given)
        assert len(algorithm.buffer.of_iteration(0)) == played * 2 * 16
        assert bool(algorithm.run.history[0]["episodes_learnt"]) == bool(given)


def test_dapo_drops_informative_groups_beyond_those_asked_for():
    class Half(Vowel):
        """The lot decides, but the first problem of an iteration always earns the same."""

        def respond(self, state, text, finish):
            return Response(float(state.problem.id != first and self.np_random.random() < 0.5), terminated=True)

    learnt = []
    kind = find_algorithm("dapo")
    settings = kind.Config.from_settings({**COMMON, "iterations": 1, "problems_per_iteration": 3})
    algorithm = kind(chat(), Half(TRAIN), settings, None, Remembering())
    first = TRAIN[algorithm.next_problems()[0]].id
    step = algorithm.learner.step
    algorithm.learner.step = lambda batch, loss: learnt.append(batch) or step(batch, loss)
    algorithm.train()
    assert len(algorithm.buffer.of_iteration(0)) == 2 * 3 * 16  # two of three are informative, then three of three
    assert learnt[0].group.unique().tolist() == [1, 2, 3]
    assert (learnt[0].total_episodes, learnt[0].total_tokens) == (48, int(learnt[0].mask.sum()))


def test_a_user_s_own_algorithm_is_a_first_class_one(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from lmgym.algorithms.grpo import GRPO\n\n\nclass Mine(GRPO):\n    '''My own.'''\n"
    )
    monkeypatch.chdir(tmp_path)
    assert find_algorithm("mine:Mine").__name__ == "Mine"
