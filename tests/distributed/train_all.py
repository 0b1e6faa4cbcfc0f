"""Trains a tiny model with the named algorithms and saves what came out; run alone and by torchrun.

train_all.py whole|sharded FOLDER ALGORITHM…
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from dataclasses import replace

from conftest import tiny_model  # first, because it imports lmgym before torch
from safetensors.torch import save_file
from small_tasks import TRAIN, Remembering, TwoTurns, chat

from lmgym.algorithms.registry import find_algorithm
from lmgym.distributed.launch import joined_processes
from lmgym.distributed.processes import processes

SOLVED = [replace(problem, solution="a") for problem in TRAIN]
SETTINGS = {"iterations": 10, "problems_per_iteration": 2, "group_size": 4, "learning_rate": 1e-4, "eval_problems": 0}
SPECIAL = {
    "sft": {"group_size": 1},
    "remax": {"group_size": 1},
    "ppo": {"minibatches": 2},
    "reinforce-stable": {"replay_episodes": 8},
}
"""Two problems, so that one of three processes has none; `dapo` samples further ones in several rounds."""


def sharded_chat(seed: int = 0):
    from lmgym.distributed.sharding import shard
    from lmgym.engines.replica_engine import ReplicaEngine
    from lmgym.policies.llm_policy import engine_for

    policy = chat(tiny_model(size=32, seed=seed))
    policy.engine = ReplicaEngine(policy.model, engine_for(policy.model.frozen_copy()))
    shard(policy.model)
    return policy


def train(name: str, is_sharded: bool, out: Path) -> None:
    kind = find_algorithm(name)
    settings = SETTINGS | {"micro_batch_tokens": 40, "save_every": 0} | SPECIAL.get(name, {})
    config = kind.Config.from_settings(settings)
    policy = sharded_chat() if is_sharded else chat()
    reference = chat(tiny_model(seed=5)) if name == "distill" else None
    if is_sharded and "kl_coeff" in config.settings():
        reference = sharded_chat()
    run = Remembering()
    algorithm = kind(policy, TwoTurns(SOLVED), config, None, run, reference)
    algorithm.train()
    from lmgym.models.language_model import full_tensor

    weights = {key: full_tensor(weight.detach()).contiguous() for key, weight in algorithm.learner.parameters().items()}
    if processes().is_first:
        losses = {
            f"metrics.{index}.{key}": value for index, row in enumerate(run.history) for key, value in row.items()
        }
        import torch

        kept = {key: torch.tensor(value) for key, value in losses.items() if "seconds" not in key}
        save_file(weights | kept, out / f"{name}.safetensors")


def gloo_threads() -> list[str]:
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").glob("*")]
    return [name for name in names if "gloo" in name]


if __name__ == "__main__":
    with joined_processes():
        for each in sys.argv[3:]:
            train(each, sys.argv[1] == "sharded", Path(sys.argv[2]))
    # One that is still running while the interpreter ends can abort the process.
    assert not gloo_threads(), gloo_threads()
