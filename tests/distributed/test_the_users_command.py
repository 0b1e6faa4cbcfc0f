"""The command that this project began with, unchanged but for a few flags: on two processes and on two servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import tiny_network, tiny_tokenizer
from serving import address, running_servers

SCRIPT = Path(__file__).parents[2] / "examples" / "reinforce_stable_on_gsm8k_training.py"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.network
@pytest.mark.parametrize(("processes", "on_servers"), [(2, False), (1, True), (2, True)])
def test_it_trains_wherever_it_runs(tmp_path, processes, on_servers):
    folder = tmp_path / "model"
    tiny_network().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    flags = f"""--model_name_or_path {folder} --n_few_shot_examples 1 --num_iterations 2 --num_collection_episodes 8
        --max_trajectory_steps 2 --n_eval_steps 4 --evaluation_at_start --kl_coeff 0.05 --sym_calc
        --save_path {tmp_path / "run"} --weights_folder {tmp_path / "weights"}""".split()
    with running_servers() as servers:
        if on_servers:
            flags += ["--engine", "vllm", "--servers", ",".join(map(address, servers))]
        done = subprocess.run(
            [sys.executable, *(TORCHRUN if processes > 1 else []), str(SCRIPT), *flags],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("4 held-out problems") == 1
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows if "reward" in row] == [1, 2]
    assert all(row["logprob_diff"] < 0.05 for row in rows if "reward" in row)
    assert len((tmp_path / "run" / "episodes.jsonl").read_text().splitlines()) == 16
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["engine"] == ("vllm" if on_servers else "torch")
