"""Contestants as processes: each runs when it is its turn and stands still, memory and all, when it is not."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmgym.benchmark.contestants.protocol import MARK
from lmgym.errors import UserError

SCRIPTS = Path(__file__).parent / "contestants"


@dataclass
class Contestant:
    """A library on a workload."""

    name: str
    script: str
    python: str
    settings: dict[str, Any]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    peak_bytes: int = 0

    def __enter__(self) -> Contestant:
        """Starts it and waits until it is ready."""
        stem = re.sub(r"\W+", "-", self.name)
        path = self.folder / f"{stem}.json"
        path.write_text(json.dumps(self.settings))
        self._chatter = (self.folder / f"{stem}.log").open("w")
        self._process = subprocess.Popen(
            [self.python, str(SCRIPTS / f"{self.script}.py"), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._chatter,
            text=True,
            start_new_session=True,
            env=os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"} | dict(self.environment),
        )
        try:
            self._listen()
        except BaseException:
            self.__exit__()
            raise
        self._signal(signal.SIGSTOP)
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it, and whatever it started."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._chatter.close()

    def run(self) -> dict[str, Any]:
        """One turn, while all others stand still."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        result = self._listen()
        self.peak_bytes = max(self.peak_bytes, _peak_of_session(self._process.pid))
        self._signal(signal.SIGSTOP)
        self.runs.append(result)
        return result

    def _listen(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                found: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return found
            self._chatter.write(line)
        self._chatter.flush()
        last = deque(Path(self._chatter.name).read_text().splitlines(), maxlen=1)
        raise UserError(f"{self.name} gave up ({' '.join(last)}); all it said is in {self._chatter.name}.")

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return


def _peak_of_session(leader: int) -> int:
    """The most memory that the processes of a session have ever held, added up."""
    total = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
            lines = (folder / "status").read_text().splitlines() if session == leader else []
        except OSError:  # it has ended meanwhile
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return total
