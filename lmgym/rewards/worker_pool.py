"""Processes that answer questions within a time limit; one that takes longer is killed and started again.

    thread of the environment ── question, a line of JSON ──► worker process
                              ◄── answer, a line of JSON ──── (killed by a timer when it takes too long)

A worker is a program with a pipe, not a fork or a copy of the caller: it is started the same way on every system, from
any thread, and runs none of the user's script.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

from lmgym.errors import UserError

START_SECONDS = 120.0
"""How long a worker may take to import its libraries, on a busy machine."""


class OverrunError(Exception):
    """A question took longer than its limit, or ended the process that worked on it."""


class Worker:
    """One process, started by the first question, and again after it was killed."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.process: subprocess.Popen[str] | None = None
        self.is_ready = False

    def start_again(self) -> None:
        """Starts the process, unless it runs, and does not wait for it."""
        if self.process is not None and self.process.poll() is None:
            return
        self.process = subprocess.Popen(
            [sys.executable, "-m", self.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        self.is_ready = False

    def ask(self, question: Any, seconds: float) -> Any:
        """The process' answer; OverrunError after so many seconds."""
        try:
            self.start_again()
            if not self.is_ready:
                self._wait_until_ready()
            assert self.process is not None
            assert self.process.stdin is not None
            with suppress(BrokenPipeError):
                self.process.stdin.write(json.dumps(question) + "\n")
            return self._read(seconds)
        except BaseException:  # also of a signal: the answer would be read as that to the next question
            self.stop()
            raise

    def _wait_until_ready(self) -> None:
        try:
            self._read(START_SECONDS)
        except OverrunError:
            raise UserError(f"a worker process did not start: try {sys.executable} -m {self.module}") from None
        self.is_ready = True

    def stop(self) -> None:
        """Kills the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def _read(self, seconds: float) -> Any:
        assert self.process is not None
        assert self.process.stdout is not None
        timer = threading.Timer(seconds, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if not line.endswith("\n"):
            self.stop()
            raise OverrunError
        return json.loads(line)


class WorkerPool:
    """Some workers of one kind: a question waits for a free one, and a killed one starts again while others answer."""

    def __init__(self, module: str, size: int = 3, seconds: float = 1.0) -> None:
        """`module` is run by `python -m`: it prints a line when it is ready, then one for each line that it reads."""
        self.seconds = seconds
        self._free = deque(Worker(module) for _ in range(size))
        self._has_free = threading.Condition()
        atexit.register(self.close)

    def ask(self, question: Any) -> Any:
        """The answer of a worker; OverrunError if it took too long."""
        with self._has_free:
            while not self._free:
                self._has_free.wait()
            for each in self._free:  # a spare one is ready when the first is killed
                each.start_again()
            worker = self._free.popleft()
        try:
            return self._answered(worker, question)
        finally:
            with self._has_free:
                # A worker that is still starting goes to the end of the line.
                (self._free.appendleft if worker.is_ready else self._free.append)(worker)
                self._has_free.notify()

    def close(self) -> None:
        """Kills all workers; a later question starts them again."""
        with self._has_free:
            for worker in self._free:
                worker.stop()

    def _answered(self, worker: Worker, question: Any) -> Any:
        """Asks once more if the worker ended before the limit, for a reason of its own."""
        started = time.monotonic()
        try:
            return worker.ask(question, self.seconds)
        except OverrunError:
            worker.start_again()
            if time.monotonic() - started >= self.seconds:
                raise
        return worker.ask(question, self.seconds)
