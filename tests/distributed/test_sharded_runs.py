"""Sharded runs from the command line: checkpoints of each number of processes, kills, and the exported model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

TASK = ["--env", "arithmetic", "--shots", "0", "--max_tokens", "4", "--eval_problems", "4", "--group_size", "2"]
FLAGS = [*TASK, "--problems_per_iteration", "2", "--learning_rate", "1e-3", "--dtype", "float32", "--save_every", "1"]


def command(*arguments: str, processes: int = 1, restarts: int = 0) -> list[str]:
    """`lmgym` in one process, or in several by torchrun."""
    if processes == 1:
        return [sys.executable, "-m", "lmgym", *arguments]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [sys.executable, *torchrun, "--max-restarts", str(restarts), "-m", "lmgym", *arguments]


def finished(*arguments: str, processes: int = 1, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    started = command(*arguments, processes=processes, restarts=restarts)
    return subprocess.run(
        started, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )


def run(*arguments: str, processes: int = 1) -> None:
    done = finished(*arguments, processes=processes)
    assert done.returncode == 0, done.stderr[-3000:]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()


def test_checkpoints_continue_on_another_number_of_processes(model_folder, tmp_path):
    """Four iterations at once, and interrupted: two processes, then one, then two again; the same weights."""
    model = ["--model", str(model_folder)]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run("train", "rloo", *model, *FLAGS, "--iterations", "4", "--schedule", "constant", "--out", str(whole))
    run(
        *("train", "rloo", *model, *FLAGS, "--iterations", "2", "--schedule", "constant", "--shard", "--out"),
        str(parts),
        processes=2,
    )
    assert (parts / "checkpoints" / "000002" / "shards").is_dir()
    run("train", "--resume", str(parts), "--iterations", "3", "--no_shard")
    assert not (parts / "checkpoints" / "000003" / "shards").exists()
    run("train", "--resume", str(parts), "--iterations", "4", "--shard", processes=2)
    once, often = weights(whole / "model"), weights(parts / "model")
    assert once.keys() == often.keys()
    for name, weight in once.items():
        assert torch.allclose(often[name], weight, rtol=1e-4, atol=1e-5), name
    lines = [json.loads(line) for line in (parts / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines if "reward" in line] == [1, 2, 3, 4]


def test_a_sharded_checkpoint_is_exported_as_an_ordinary_model(model_folder, tmp_path):
    out = tmp_path / "run"
    flags = [*FLAGS, "--iterations", "2", "--shard", "--out", str(out)]
    run("train", "rloo", "--model", str(model_folder), *flags, processes=2)
    final = weights(out / "model")
    (out / "model").rename(tmp_path / "elsewhere")
    refused = finished("eval", "--model", str(out))
    assert refused.returncode == 2
    assert "lmgym export" in refused.stderr
    run("export", str(out), "--out", str(tmp_path / "exported"))
    for name, weight in weights(tmp_path / "exported").items():
        assert torch.equal(weight, final[name]), name


def test_processes_that_are_killed_are_started_again_and_resume(model_folder, tmp_path):
    out = tmp_path / "run"
    flags = [*FLAGS, "--iterations", "12", "--out", str(out)]
    started = subprocess.Popen(
        command("train", "rloo", "--model", str(model_folder), *flags, processes=2, restarts=1),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not any(out.glob("checkpoints/*/state.json")):
        assert time.monotonic() < deadline
        assert started.poll() is None
        time.sleep(0.05)
    children = subprocess.run(["pgrep", "-P", str(started.pid)], capture_output=True, text=True, check=True)
    os.kill(int(children.stdout.split()[-1]), signal.SIGKILL)
    printed, errors = started.communicate(timeout=240)
    assert started.returncode == 0, errors[-3000:]
    assert "resuming" in printed
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines if "reward" in line] == list(range(1, 13))


def test_a_restart_removes_nothing_that_is_not_its_own(model_folder, tmp_path):
    """The folder exists: the first attempt refuses it, and so does the second one."""
    out = tmp_path / "precious"
    out.mkdir()
    (out / "thesis.txt").write_text("all of it")
    flags = ["--model", str(model_folder), *FLAGS, "--iterations", "1", "--out", str(out)]
    done = finished("train", "rloo", *flags, processes=2, restarts=1)
    assert done.returncode != 0
    assert "exists already" in done.stderr
    assert (out / "thesis.txt").read_text() == "all of it"


def test_algorithms_with_a_second_network_refuse(model_folder, tmp_path):
    flags = ["--model", str(model_folder), *FLAGS, "--iterations", "1", "--shard", "--out", str(tmp_path / "run")]
    done = finished("train", "ppo", *flags, processes=2)
    assert done.returncode != 0
    assert "--shard is not supported where a second network" in done.stderr


@pytest.mark.parametrize("flags", [["--shard"], ["--shard", "--lora_rank", "4"]])
def test_one_process_has_nothing_to_share(model_folder, tmp_path, flags):
    arguments = ["--model", str(model_folder), *FLAGS, "--iterations", "1", *flags, "--out", str(tmp_path / "run")]
    done = finished("train", "rloo", *arguments)
    assert done.returncode == 2
    assert "--shard needs several processes: torchrun" in done.stderr
