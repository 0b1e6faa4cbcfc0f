"""The time of a session: how long its iterations take, what is left of a run, and whether the next one still fits."""

from __future__ import annotations

import time
from statistics import fmean

from lmgym.errors import UserError

RECENT = 5
"""Number of last iterations from which the next one is estimated."""

MARGIN = 1.25
"""The next iteration is assumed to take this many times the longest recent one."""


class TimeBudget:
    """Measures one session of a run, from its creation on; with `minutes` above 0, a session of limited length."""

    def __init__(self, minutes: float = 0.0) -> None:
        if not minutes >= 0:  # also true of nan
            raise UserError(f"--minutes is {minutes:g}: give 0 for no limit, or a number above.")
        self.minutes = minutes
        self.iterations: list[float] = []
        """Seconds of each iteration of this session."""
        self.evaluation = 0.0
        """Seconds of the last evaluation."""
        self.saving = 0.0
        """Seconds of the last checkpoint."""
        self._started = self._saved = self._last = time.monotonic()

    def begin(self) -> None:
        """The first iteration begins now."""
        self._last = time.monotonic()

    def iterated(self) -> None:
        """An iteration has ended; evaluations and checkpoints since the one before are not part of it."""
        now = time.monotonic()
        self.iterations.append(now - self._last)
        self._last = now

    def seconds_left(self, iterations: int) -> float | None:
        """The estimated time of this many further iterations; None before the first one of the session."""
        return fmean(self.iterations[-RECENT:]) * iterations if self.iterations else None

    def is_over(self, has_evaluation: bool) -> bool:
        """Whether the next iteration, and an evaluation if it has one, might not end within the minutes.

        A session does at least one iteration, so that a run makes progress however short its sessions are.
        """
        if not self.minutes or not self.iterations:
            return False
        next_one = MARGIN * (max(self.iterations[-RECENT:]) + (self.evaluation if has_evaluation else 0.0))
        return time.monotonic() - self._started + next_one + self.saving > 60 * self.minutes

    def minutes_since_save(self) -> float:
        """Minutes since the last checkpoint, or since the session began."""
        return (time.monotonic() - self._saved) / 60

    def evaluated(self, seconds: float) -> None:
        """An evaluation has ended, and took so long."""
        self.evaluation = seconds
        self._last += seconds

    def saved(self, seconds: float) -> None:
        """A checkpoint was written, and took so long."""
        self.saving, self._saved = seconds, time.monotonic()
        self._last += seconds
