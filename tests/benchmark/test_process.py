"""Contestants take turns: they are heard through their chatter, stand still between turns, and are gone in the end."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lmgym.benchmark import process
from lmgym.benchmark.comparison import busy_process
from lmgym.benchmark.contestants import protocol
from lmgym.benchmark.process import Contestant
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
    print("chatter of a library")
    return {{"tokens": next(numbers)}}

serve(run)
"""


@pytest.fixture
def contestant(tmp_path, monkeypatch):
    def make(code: str) -> Contestant:
        monkeypatch.setattr(process, "SCRIPTS", tmp_path)
        (tmp_path / "it.py").write_text(code.format(folder=str(Path(protocol.__file__).parent)))
        settings = {"beats": str(tmp_path / "beats")}
        return Contestant("it", "it", sys.executable, settings, tmp_path)

    return make


def test_each_line_is_one_run_and_memory_is_measured(contestant):
    with contestant(COUNTS) as it:
        assert [it.run()["tokens"] for _ in range(3)] == [1, 2, 3]
    assert [run["tokens"] for run in it.runs] == [1, 2, 3]
    assert all(run["seconds"] >= 0 for run in it.runs)
    assert it.peak_bytes > 1_000_000


def test_who_is_not_asked_stands_still_and_who_has_run_is_gone(contestant, tmp_path):
    with contestant(COUNTS) as it:
        it.run()
        time.sleep(0.05)
        before = (tmp_path / "beats").read_text()
        time.sleep(0.2)
        assert (tmp_path / "beats").read_text() == before
        running = it._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(running, 0)


@pytest.mark.parametrize("code", ["raise RuntimeError('no such thing')", "print('nothing to say')"])
def test_a_contestant_that_gives_up_is_one_sentence(contestant, code, tmp_path):
    with pytest.raises(UserError, match="it gave up"), contestant(code):
        pass
    assert (tmp_path / "it.log").exists()


SHOWS_A_VARIABLE = """
import os, sys
sys.path.insert(0, {folder!r})
from protocol import serve
serve(lambda: {{"tokens": int(os.environ["GOMP_SPINCOUNT"])}})
"""


def test_the_same_library_may_take_part_twice_with_other_variables(contestant, tmp_path):
    one = contestant(SHOWS_A_VARIABLE)
    variants = [replace(one, name=f"it, {count}", environment={"GOMP_SPINCOUNT": count}) for count in ("3", "5")]
    with variants[0] as first, variants[1] as second:
        assert (first.run()["tokens"], second.run()["tokens"]) == (3, 5)
    assert {path.name for path in tmp_path.glob("*.log")} == {"it-3.log", "it-5.log"}


def test_a_busy_process_computes_while_it_is_wanted_and_no_longer():
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
