"""A Python interpreter for the code of a model: a process of its own with limits, started anew for each call."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

CHILD = Path(__file__).with_name("sandbox_child.py")

PROBES = {
    "no network": "import socket\nsocket.socket()",
    "no processes": "import os\nos.fork()",
    "no files outside": f"open({str(Path(__file__))!r}, 'a')",
    "no reading of your files": f"import os\nos.listdir({str(Path.home())!r})",
    "memory": "x = bytearray(8 << 30)",
}
"""Code that must fail, by what its failure shows."""


@dataclass(frozen=True)
class PythonTool:
    """Runs Python code and returns what it printed, or the last line of its error."""

    seconds: float = 5.0
    """Wall-clock limit."""
    memory: int = 512 << 20
    """Bytes of address space."""
    most_characters: int = 2000
    """Longer output is cut in the middle."""

    name = "python"
    description = "Runs Python code and returns what it prints."

    def __call__(self, code: str) -> str:
        """Runs the code."""
        output, status = self._run(code)
        if status == "time":
            return f"{output}\nTimeoutError: the code ran longer than {self.seconds:g} s.".strip()
        if status == "killed":
            return f"{output}\nMemoryError: the code was stopped.".strip()
        if status == "error":
            printed, _, error = output.rpartition("Traceback (most recent call last):")
            last = error.strip().splitlines()[-1] if error.strip() else output.strip()
            return f"{printed}{last}".strip() or "(the code ended with an error)"
        return output.strip() or "(no output)"

    def protections(self) -> dict[str, bool]:
        """What holds on this system, tried out."""
        return {name: self._run(code)[1] != "done" for name, code in PROBES.items()}

    def _run(self, code: str) -> tuple[str, str]:
        """What the code wrote, and how it ended: done, error, killed or time."""
        with tempfile.TemporaryDirectory(prefix="lmgym-python-") as folder:
            process = subprocess.Popen(
                [sys.executable, "-I", "-B", str(CHILD), str(int(self.seconds) + 1), str(self.memory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={"PATH": "/usr/bin:/bin", "HOME": folder, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )
            overran = threading.Event()
            timer = threading.Timer(self.seconds, _stop, (process, overran))
            timer.start()
            try:
                written = self._exchange(process, code)
            finally:
                timer.cancel()
                _kill(process)
                process.wait()
        text = written.decode("utf-8", "replace")
        if overran.is_set():
            return text, "time"
        if process.returncode < 0:
            return text, "killed"
        return text, "error" if process.returncode else "done"

    def _exchange(self, process: subprocess.Popen[bytes], code: str) -> bytes:
        """Sends the code and reads its output, keeping the first and the last part of a long one."""
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(code.encode("utf-8", "replace"))
            process.stdin.close()
        half = self.most_characters // 2
        first, last, cut = b"", b"", False
        while part := os.read(process.stdout.fileno(), 1 << 16):
            kept = part[: max(0, half - len(first))]
            first += kept
            last += part[len(kept) :]
            cut = cut or len(last) > half
            last = last[-half:]
        process.wait()
        process.stdout.close()
        return first + (b"\n...\n" if cut else b"") + last


def _stop(process: subprocess.Popen[bytes], overran: threading.Event) -> None:
    overran.set()
    _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills the process and whatever it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
