"""The files of examples/cluster: their syntax, and that the commands in them are commands of lmgym."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[1] / "examples" / "cluster"

STUB = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$(basename "$0") $1" in "scontrol show") printf 'a\\nb\\n' ;; esac
"""


def programs(folder: Path) -> dict[str, str]:
    """An environment whose cluster programs only write down how they were called."""
    for name in ("srun", "scontrol", "lmgym", "torchrun"):
        path = folder / name
        path.write_text(STUB)
        path.chmod(0o755)
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "CALLS": str(folder / "calls")}


def check_flags(command: str, tmp_path: Path) -> None:
    """`--help` after the flags: unknown ones are refused before it is printed."""
    words = [re.sub(r"\$\{?\w+[^ ]*|\"\$.*?\"", "x", word) for word in shlex.split(command)]
    done = subprocess.run(
        [sys.executable, "-m", "lmgym", *words, "--help"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


def test_the_slurm_script_starts_servers_and_learners(tmp_path):
    script = FOLDER / "slurm.sbatch"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    environment = programs(tmp_path) | {
        "SHARED": str(tmp_path / "shared"),
        "SLURM_JOB_NODELIST_HET_GROUP_0": "a",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "b",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": "lmgym",
        "GPUS": "2",
    }
    subprocess.run(["bash", str(script)], env=environment, check=True)
    calls = (tmp_path / "calls").read_text()
    urls = "http://a:8000,http://a:8001,http://b:8000,http://b:8001"
    assert f"lmgym servers --wait 900 {urls}" in calls
    (learner,) = (line for line in calls.splitlines() if "torchrun" in line)
    assert "--nnodes 2 --nproc-per-node 2" in learner
    check_flags(learner.partition("-m lmgym ")[2], tmp_path)
    (tmp_path / "shared" / "runs" / "lmgym" / "checkpoints" / "000001").mkdir(parents=True)
    (tmp_path / "shared" / "runs" / "lmgym" / "checkpoints" / "000001" / "state.json").touch()
    (tmp_path / "calls").unlink()
    subprocess.run(["bash", str(script)], env=environment, check=True)
    assert "train --resume" in (tmp_path / "calls").read_text()


def test_the_job_group_of_skypilot(tmp_path):
    header, *tasks = yaml.safe_load_all((FOLDER / "skypilot.yaml").read_text())
    assert header == {"name": "lmgym", "execution": "parallel"}
    assert [task["name"] for task in tasks] == ["server", "learner"]
    for task in tasks:
        assert subprocess.run(["bash", "-n"], input=task["run"], text=True, check=False).returncode == 0
    learner = tasks[1]["run"]
    assert f"for index in {' '.join(map(str, range(tasks[0]['num_nodes'])))};" in learner
    environment = programs(tmp_path) | {"SKYPILOT_JOBGROUP_NAME": "lmgym", "MODEL": "smollm2-135m"}
    subprocess.run(["bash", "-c", learner], env=environment, check=True)
    started = (tmp_path / "calls").read_text().splitlines()[-1]
    assert "http://server-3.lmgym:8000" in started
    check_flags(started.partition("-m lmgym ")[2], tmp_path)


def test_the_compose_file(tmp_path):
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    assert set(services["learner"]["depends_on"]) == services.keys() - {"learner"}
    for service in services.values():
        inner = shlex.split(service["command"])[2]
        for command in inner.split("&&"):
            words = shlex.split(command)
            if words[0] == "lmgym":
                check_flags(shlex.join(words[1:]), tmp_path)
