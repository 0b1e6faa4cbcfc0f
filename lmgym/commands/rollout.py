"""`lmgym rollout`: collects episodes and learns nothing; `lmgym train --load_episodes` is the other half."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lmgym.algorithms.metrics import outcome_metrics
from lmgym.assets.storage import writing_to
from lmgym.buffer import Buffer
from lmgym.commands.settings import PolicySettings, TaskSettings
from lmgym.console import messages, results
from lmgym.envs.examples import few_shot_examples
from lmgym.envs.vector_env import VectorEnv
from lmgym.errors import UserError
from lmgym.evaluation.grading import failures


@dataclass
class Collection:
    """What to collect."""

    split: str = "train"
    """The split of the environment."""
    problems: int = 16
    """Number of problems, chosen at random."""
    group_size: int = 8
    """Episodes per problem."""
    seed: int = 0
    """Seed of problems and samples."""
    out: str = "episodes.jsonl"
    """The file to write; one that exists is not overwritten."""


@dataclass
class RolloutSettings:
    """The settings of `lmgym rollout`."""

    collection: Collection = field(default_factory=Collection)
    task: TaskSettings = field(default_factory=TaskSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)


def rollout(settings: RolloutSettings) -> Buffer:
    """Samples the episodes of one iteration, writes them and prints their means."""
    chosen, path = settings.collection, Path(settings.collection.out)
    if chosen.problems < 1 or chosen.group_size < 1:
        raise UserError("--problems and --group_size must be at least 1.")
    if path.exists():
        raise UserError(f"{path} exists: give another --out.")
    env = settings.task.make(chosen.split)
    shots = settings.policy.shots
    examples = few_shot_examples(settings.task.make("train"), shots) if shots else []
    policy = settings.policy.make(env, examples, settings.policy.model)
    indices = np.random.default_rng(chosen.seed).integers(len(env.problems), size=chosen.problems)
    envs, buffer = VectorEnv(env), Buffer()
    count = chosen.problems * chosen.group_size
    messages.print(f"sampling {count} episodes of {settings.policy.model} …", markup=False, soft_wrap=True)
    envs.reset([int(index) for index in indices], chosen.group_size, chosen.seed)
    while states := envs.states:
        buffer.add(envs.step(policy.next_actions(states)), iteration=0)
    with writing_to(path.parent, "--out"):
        buffer.save(path)
    failed = [episode for episode in buffer.episodes if episode.error is not None]
    if failed:
        messages.print(failures(failed, len(buffer)), markup=False, soft_wrap=True)
    means = outcome_metrics(list(buffer.episodes))
    results.print(", ".join(f"{name} {value:.3g}" for name, value in means.items()), markup=False, soft_wrap=True)
    results.print(f"{len(buffer.episodes)} episodes are in {path}", markup=False, soft_wrap=True)
    return buffer
