"""Baselines as processes: results are told from other output, waiting processes are suspended."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.speed import baseline_process
from benchmarks.speed.baseline import LMGYM, Baseline
from benchmarks.speed.baseline_process import BaselineProcess
from benchmarks.speed.baselines import protocol
from benchmarks.speed.comparison import busy_process
from benchmarks.speed.sections import SECTIONS
from benchmarks.speed.settings import BenchSettings
from lmgym.errors import UserError

COUNTS = """
import itertools, pathlib, sys, threading, time
sys.path.insert(0, {folder!r})
from protocol import serve, settings
beats = pathlib.Path(settings()["beats"])

def beat():
    for count in itertools.count():
        beats.write_text(str(count))
        time.sleep(0.01)

threading.Thread(target=beat, daemon=True).start()
numbers = itertools.count(1)

def run():
    print("output of a library")
    return {{"tokens": next(numbers)}}

serve(run)
"""


@pytest.fixture
def make_process(tmp_path, monkeypatch):
    def make(code: str) -> BaselineProcess:
        monkeypatch.setattr(baseline_process, "SCRIPTS", tmp_path)
        (tmp_path / "script.py").write_text(code.format(folder=str(Path(protocol.__file__).parent)))
        return BaselineProcess(Baseline("some library", "script"), {"beats": str(tmp_path / "beats")}, tmp_path)

    return make


def test_each_line_is_one_run_and_memory_is_measured(make_process):
    with make_process(COUNTS) as process:
        assert [process.run()["tokens"] for _ in range(3)] == [1, 2, 3]
    assert [run["tokens"] for run in process.runs] == [1, 2, 3]
    assert all(run["seconds"] >= 0 for run in process.runs)
    assert process.peak_bytes > 1_000_000


def test_a_waiting_process_is_suspended_and_a_finished_one_is_gone(make_process, tmp_path):
    with make_process(COUNTS) as process:
        process.run()
        time.sleep(0.05)
        before = (tmp_path / "beats").read_text()
        time.sleep(0.2)
        assert (tmp_path / "beats").read_text() == before
        running = process._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(running, 0)


@pytest.mark.parametrize("code", ["raise RuntimeError('no such thing')", "print('nothing to report')"])
def test_a_baseline_that_stops_is_one_sentence(make_process, code, tmp_path):
    with pytest.raises(UserError, match="some library stopped"), make_process(code):
        pass
    assert (tmp_path / "some-library.log").exists()


SHOWS_A_VARIABLE = """
import os, sys
sys.path.insert(0, {folder!r})
from protocol import serve
serve(lambda: {{"tokens": int(os.environ["GOMP_SPINCOUNT"])}})
"""


def test_one_library_can_run_twice_with_different_variables(make_process, tmp_path):
    one = make_process(SHOWS_A_VARIABLE)
    variants = [
        replace(one, baseline=replace(one.baseline, name=f"it, {count}", variables={"GOMP_SPINCOUNT": count}), runs=[])
        for count in ("3", "5")
    ]
    with variants[0] as first, variants[1] as second:
        assert (first.run()["tokens"], second.run()["tokens"]) == (3, 5)
    assert {path.name for path in tmp_path.glob("*.log")} == {"it-3.log", "it-5.log"}


@pytest.mark.parametrize("install", [True, False])
def test_every_section_names_scripts_that_exist(install):
    comparisons = [each for section in SECTIONS.values() for each in section(BenchSettings(install_baselines=install))]
    baselines = [LMGYM, *(each for comparison in comparisons for each in comparison.baselines)]
    assert all((baseline_process.SCRIPTS / f"{each.script}.py").is_file() for each in baselines)
    assert any(each.virtual_environment for each in baselines) == install


def test_a_busy_process_computes_until_its_block_ends():
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = set(children.read_text().split())
    with busy_process():
        (busy,) = set(children.read_text().split()) - before
        seconds = [_processor_time(busy)]
        time.sleep(0.3)
        seconds.append(_processor_time(busy))
        assert seconds[1] > seconds[0]
    assert not Path(f"/proc/{busy}").exists()


def _processor_time(process_id: str) -> int:
    return int(Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[11])
