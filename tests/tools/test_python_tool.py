"""The Python tool, against code that tries to get out of it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from lmgym.tools.python_tool import PythonTool

TOOL = PythonTool(seconds=20)
linux = pytest.mark.skipif(sys.platform != "linux", reason="Landlock and seccomp are of Linux")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print(1 + 1)", "2"),
        ("for i in range(3):\n    print(i)", "0\n1\n2"),
        ("x = 5", "(no output)"),
        ("print('before')\n1/0", "before\nZeroDivisionError: division by zero"),
        ("print(", "SyntaxError: '(' was never closed"),
        ("open('a.txt', 'w').write('hi'); print(open('a.txt').read())", "hi"),
        ("print(input())", "EOFError: EOF when reading a line"),
        ("def f(): return f()\nf()", "RecursionError: maximum recursion depth exceeded"),
        ("import sys; sys.exit(3)", "(the code ended with an error)"),
        ("import math, fractions; print(fractions.Fraction(1, 3))", "1/3"),
    ],
)
def test_code_is_run_and_an_error_is_its_last_line(code, said):
    assert TOOL(code) == said


@linux
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import socket; socket.socket()", "Operation not permitted"),
        ("import os; os.fork()", "Operation not permitted"),
        ("import subprocess; subprocess.run(['ls'])", "Operation not permitted"),
        ("import os; os.execv('/bin/ls', ['ls'])", "Operation not permitted"),
        ("import os; os.kill(os.getppid(), 9)", "Operation not permitted"),
        ("import os; os.kill(-1, 9)", "Operation not permitted"),
        ("open('/etc/passwd').read()", "Permission denied"),
        (f"open({str(Path(__file__))!r}).read()", "Permission denied"),
        (f"open({str(Path.home() / 'x')!r}, 'w')", "Permission denied"),
        ("import os; os.listdir('/proc')", "Permission denied"),
        ("import os; os.chmod('.', 0)", "Operation not permitted"),
        ("import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))", "not allowed"),
        ("import ctypes; print(ctypes.CDLL(None).fork())", "-1"),
        ("x = bytearray(4 << 30)", "MemoryError"),
        ("open('big', 'wb').write(b'x' * (1 << 22))", "File too large"),
    ],
)
def test_what_code_must_not_do_fails(code, said):
    assert said in TOOL(code)


@linux
def test_all_protections_hold_here():
    assert all(TOOL.protections().values()), TOOL.protections()


def test_an_endless_loop_is_stopped():
    started = time.monotonic()
    assert "TimeoutError" in PythonTool(seconds=1)("print('on', flush=True)\nwhile True: pass")
    assert "on" in PythonTool(seconds=1)("print('on', flush=True)\nimport time\ntime.sleep(1000)")
    assert time.monotonic() - started < 60


def test_endless_output_is_cut_in_the_middle_and_not_kept():
    said = PythonTool(seconds=2, most_characters=100)("print('first')\nwhile True: print('x' * 1000)")
    assert said.startswith("first")
    assert "TimeoutError" in said
    assert len(said) < 250


def test_nothing_of_the_callers_environment_is_seen(monkeypatch):
    monkeypatch.setenv("MY_SECRET", "42")
    assert TOOL("import os; print(os.environ.get('MY_SECRET'))") == "None"


def test_no_process_and_no_folder_is_left():
    before = set(Path("/tmp").glob("lmgym-python-*"))
    PythonTool(seconds=1)("while True: pass")
    assert set(Path("/tmp").glob("lmgym-python-*")) <= before
    assert not any("sandbox_child" in _command(pid) for pid in os.listdir("/proc") if pid.isdigit())


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
