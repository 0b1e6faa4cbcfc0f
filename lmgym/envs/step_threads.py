"""Threads in which concurrent environments are stepped; one that hangs is left behind and replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

from lmgym.envs.time_limit import TimeLimitError

Result = TypeVar("Result")


class StepThreads(Generic[Result]):
    """A daemon thread per function, of which at most `count` run at once; a hanging one does not keep the process."""

    def __init__(self, count: int) -> None:
        self._free = threading.Semaphore(count)
        self._started: dict[Future[Result], float] = {}

    def submit(self, function: Callable[[], Result]) -> Future[Result]:
        """Starts the function as soon as a thread is free."""
        future: Future[Result] = Future()

        def run() -> None:
            self._free.acquire()
            self._started[future] = time.monotonic()
            try:
                result = function()
            except BaseException as error:  # raised again where the future is read
                self._finish(future, partial(future.set_exception, error))
            else:
                self._finish(future, partial(future.set_result, result))

        threading.Thread(target=run, name="lmgym-step", daemon=True).start()
        return future

    def expire(self, seconds: float) -> None:
        """Functions that have run for longer than this fail with TimeLimitError, and their threads are replaced."""
        now = time.monotonic()
        for future, started in list(self._started.items()):
            if now - started > seconds:
                error = TimeLimitError(f"it took longer than {seconds:g} s")
                self._finish(future, partial(future.set_exception, error))

    def _finish(self, future: Future[Result], settle: Callable[[], None]) -> None:
        """Settles a future once: by its function, or because that took too long."""
        if self._started.pop(future, None) is not None:
            settle()
            self._free.release()
