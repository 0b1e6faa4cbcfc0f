"""A baseline as a process: it runs when asked and is suspended, with its memory, while another one runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.speed.baseline import Baseline
from benchmarks.speed.baselines.protocol import MARK
from lmgym.errors import UserError

SCRIPTS = Path(__file__).parent / "baselines"
ROOT = Path(__file__).parent.parent.parent


@dataclass
class BaselineProcess:
    """A running baseline; entering the context starts it, leaving it ends it."""

    baseline: Baseline
    settings: dict[str, Any]
    folder: Path
    runs: list[dict[str, Any]] = field(default_factory=list)
    peak_bytes: int = 0

    def __enter__(self) -> BaselineProcess:
        """Starts the process and waits until it is ready."""
        stem = re.sub(r"\W+", "-", self.baseline.name)
        path = self.folder / f"{stem}.json"
        path.write_text(json.dumps(self.settings | dict(self.baseline.options)))
        self._log = (self.folder / f"{stem}.log").open("w")
        self._process = subprocess.Popen(
            [self.baseline.python(), str(SCRIPTS / f"{self.baseline.script}.py"), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
            env=self._variables(),
        )
        try:
            self._read_result()
        except BaseException:
            self.__exit__()
            raise
        self._signal(signal.SIGSTOP)
        return self

    def __exit__(self, *_: object) -> None:
        """Kills the process and all that it started."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def run(self) -> dict[str, Any]:
        """One run, while all other baselines are suspended."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        result = self._read_result()
        self.peak_bytes = max(self.peak_bytes, _peak_of_session(self._process.pid))
        self._signal(signal.SIGSTOP)
        self.runs.append(result)
        return result

    def _variables(self) -> dict[str, str]:
        found = os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        if self.baseline.virtual_environment is None:  # another library's environment must not see this repository
            found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return found | dict(self.baseline.variables)

    def _read_result(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                found: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return found
            self._log.write(line)
        self._log.flush()
        last = deque(Path(self._log.name).read_text().splitlines(), maxlen=1)
        raise UserError(f"{self.baseline.name} stopped ({' '.join(last)}); its output is in {self._log.name}.")

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return


def _peak_of_session(leader: int) -> int:
    """The sum over the processes of a session of the most memory that each has held."""
    total = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
            lines = (folder / "status").read_text().splitlines() if session == leader else []
        except OSError:  # the process has ended
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return total
