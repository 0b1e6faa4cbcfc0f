"""A time limit for code that others wrote, such as a reward or a tool."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

AGAIN = 1.0
"""Seconds after which code that caught the error is interrupted again."""


class TimeLimitError(Exception):
    """A block took longer than its limit."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeLimitError in the block after so many seconds.

    It uses SIGALRM, which interrupts loops, waiting and regular expressions, and which only the main thread of a Unix
    process receives; elsewhere there is no limit. A block that uses SIGALRM itself, as math-verify does, lifts it.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signal_number: int, frame: FrameType | None) -> None:
        raise TimeLimitError(f"it took longer than {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous or signal.SIG_DFL)
