"""What processes exchange, in real processes that torchrun starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from lmgym.algorithms.catalogue import ALGORITHMS
from lmgym.algorithms.registry import find_algorithm
from lmgym.distributed.processes import Processes


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 5))
def test_work_is_dealt_completely_and_evenly(costs, count):
    dealt = Processes(0, count).deal(costs)
    assert sorted(index for own in dealt for index in own) == list(range(len(costs)))
    loads = [sum(costs[index] for index in own) for own in dealt]
    assert max(loads) - min(loads) <= max(costs, default=0)


@given(st.lists(st.integers(), max_size=20), st.integers(1, 5))
def test_shares_are_disjoint_and_complete(items, count):
    shares = [Processes(rank, count).share(list(enumerate(items))) for rank in range(count)]
    assert sorted(item for share in shares for item in share) == list(enumerate(items))


def test_one_process_exchanges_nothing():
    alone = Processes()
    assert alone.gather([1, 2]) == [1, 2]
    assert alone.join({1: "b", 0: "a"}) == ["a", "b"]
    assert alone.decide(lambda: 3) == 3


NAMES = tuple(ALGORITHMS)
ON_THREE = ("reinforce-stable", "dapo", "ppo", "online-dpo", "sft")
"""On three processes one has no problems of its own."""


def torchrun(script: Path, *arguments: str, processes: int = 2) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(script), *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[int, Path]:
    """What one process and two and three of them learnt, by their number."""
    script = Path(__file__).with_name("train_all.py")
    folders = {count: tmp_path_factory.mktemp(f"processes-{count}") for count in (1, 2, 3)}
    for count, folder in folders.items():
        torchrun(script, "whole", str(folder), *(NAMES if count < 3 else ON_THREE), processes=count)
    return folders


def require_equal(alone: dict[str, torch.Tensor], together: dict[str, torch.Tensor], title: str) -> None:
    """Compares weights and metrics; `pytest -rP` shows the largest difference of the weights."""
    assert alone.keys() == together.keys()
    for key, value in alone.items():
        assert torch.allclose(together[key], value, rtol=1e-4, atol=1e-5), key
    weights = [key for key in alone if not key.startswith("metrics.")]
    difference = max(float((together[key] - alone[key]).abs().max()) for key in weights)
    print(f"{title}: largest difference of a weight {difference:.1e}")  # noqa: T201


@pytest.mark.parametrize(("count", "name"), [*((2, name) for name in NAMES), *((3, name) for name in ON_THREE)])
def test_several_processes_learn_what_one_learns(trained, name, count):
    """Ten updates: the same tokens, losses, gradient norms and weights."""
    alone, together = (load_file(trained[each] / f"{name}.safetensors") for each in (1, count))
    require_equal(alone, together, f"{name} on {count} processes")


SHARDED = tuple(name for name in NAMES if find_algorithm(name).can_shard)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory) -> Path:
    """What two processes learnt, each of which had half of the weights."""
    folder = tmp_path_factory.mktemp("sharded")
    torchrun(Path(__file__).with_name("train_all.py"), "sharded", str(folder), *SHARDED)
    return folder


@pytest.mark.parametrize("name", SHARDED)
def test_a_sharded_model_learns_what_a_whole_one_learns(trained, sharded, name):
    """Ten updates: the same tokens, losses, gradient norms and weights."""
    whole, shards = load_file(trained[1] / f"{name}.safetensors"), load_file(sharded / f"{name}.safetensors")
    require_equal(whole, shards, f"{name}, sharded")
