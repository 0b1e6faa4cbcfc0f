"""How Ctrl-C and SIGTERM stop a run: never in the middle of an update, unless asked twice."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from lmgym.console import messages
from lmgym.distributed.processes import processes


class StoppedAtOnceError(KeyboardInterrupt):
    """The second Ctrl-C: weights may have changed in an iteration that is not counted, so they are not saved."""


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delays the first Ctrl-C until the end of the block; a second one stops it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    previous = signal.getsignal(signal.SIGINT)

    def hold(number: int, _frame: Any) -> None:
        if held:
            raise StoppedAtOnceError
        held.append(number)
        messages.print("finishing this update first; press Ctrl-C again to stop at once …")

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if held:
        raise KeyboardInterrupt


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM, which `kill`, Slurm and containers send, do what Ctrl-C does.

    Not with several processes: there one that waits for the others could not end in time.
    """
    if threading.current_thread() is not threading.main_thread() or processes().count > 1:
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(number, frame)

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
