"""A time limit for code that others wrote, such as a reward or a tool."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
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
    process receives; elsewhere there is no limit. A block that uses SIGALRM itself, as math-verify does, lifts it. An
    alarm that was set before goes on afterwards.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    is_limited = True

    def stop(signal_number: int, frame: FrameType | None) -> None:
        if is_limited:  # a signal may arrive when the block has just ended
            raise TimeLimitError(f"it took longer than {seconds:g} s")

    started, previous = time.monotonic(), signal.signal(signal.SIGALRM, stop)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        is_limited = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous or signal.SIG_DFL)
        if left:
            remaining = left - (time.monotonic() - started)
            signal.setitimer(signal.ITIMER_REAL, max(remaining, 1e-3), interval)
