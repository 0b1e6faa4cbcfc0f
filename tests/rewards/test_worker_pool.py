"""Worker processes: real ones, which hang, crash and are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lmgym.errors import UserError
from lmgym.rewards.worker_pool import OverrunError, WorkerPool

PROGRAM = """
import json, os, sys, time
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    question = json.loads(line)
    if question == "hang":
        time.sleep(1000)
    if question == "crash":
        os.abort()
    print(json.dumps([os.getpid(), question]), flush=True)
"""


@pytest.fixture
def pool(tmp_path, monkeypatch):
    (tmp_path / "worker_for_tests.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pool = WorkerPool("worker_for_tests", seconds=1.0)
    yield pool
    pool.close()


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def test_one_worker_answers_all_questions_while_none_waits(pool):
    answers = [pool.ask(number) for number in range(20)]
    assert [said for _, said in answers] == list(range(20))
    assert len({pid for pid, _ in answers}) == 1


def test_a_worker_that_hangs_is_killed_and_the_next_question_is_answered(pool):
    pid, _ = pool.ask(1)
    with pytest.raises(OverrunError):
        pool.ask("hang")
    other, said = pool.ask(2)
    assert said == 2
    assert other != pid
    assert not is_alive(pid)


def test_a_question_that_crashes_its_worker_is_an_overrun_and_costs_no_other(pool):
    with pytest.raises(OverrunError):
        pool.ask("crash")
    assert pool.ask(3)[1] == 3


def test_a_worker_that_died_idle_costs_nothing(pool):
    pid, _ = pool.ask(1)
    os.kill(pid, signal.SIGKILL)
    assert pool.ask(2)[1] == 2


def test_others_are_answered_while_one_hangs(pool):
    pool.ask(0)
    ended: list[float] = []

    def hang() -> None:
        with pytest.raises(OverrunError):
            pool.ask("hang")
        ended.append(time.monotonic())

    thread = threading.Thread(target=hang)
    thread.start()
    time.sleep(0.1)
    assert pool.ask(1)[1] == 1
    assert not ended or thread.is_alive()
    thread.join()


def test_a_program_that_does_not_start_is_named():
    with pytest.raises(UserError, match=r"lmgym\.no_such_module"):
        WorkerPool("lmgym.no_such_module").ask(1)


def test_no_worker_outlives_its_program(tmp_path):
    """Neither an end, nor a kill, leaves one behind."""
    script = """
from lmgym.rewards.latex_checker import _pool, compare_latex
assert compare_latex("x+1", "1+x").is_right
print(*[worker.process.pid for worker in _pool()._free if worker.process], flush=True)
if {kill}: import os; os.kill(os.getpid(), 9)
"""
    for kill in (False, True):
        done = subprocess.run(
            [sys.executable, "-c", script.format(kill=kill)], capture_output=True, text=True, check=False
        )
        pids = [int(pid) for pid in done.stdout.split()]
        assert pids, done.stderr
        deadline = time.monotonic() + 60
        while any(map(is_alive, pids)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(is_alive, pids))
