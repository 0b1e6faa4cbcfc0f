"""The progress of an evaluation: problems done, accuracy so far with its interval, and time left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.progress import Progress

from lmgym.console import format_duration, messages, progress_bars
from lmgym.evaluation.grading import is_correct
from lmgym.evaluation.statistics import wilson
from lmgym.types import Episode

SECONDS = 30.0
"""Time between two lines of progress where there is no terminal."""


class EvaluationProgress:
    """A bar in a terminal; elsewhere, such as in a log file, a line every half minute."""

    def __init__(self, episodes: int, samples: int = 1, bars: Progress | None = None) -> None:
        """`bars` is the live display of a run, which the bar joins; `samples` episodes are of the same problem."""
        self.episodes, self.samples = episodes, samples
        self.done = self.correct = self.earlier = 0
        self._is_started_here = bars is None and messages.is_terminal
        self._bars = bars or progress_bars()
        self._started = self._printed = time.monotonic()

    def __enter__(self) -> Self:
        """Shows the bar."""
        self._task = self._bars.add_task("evaluating", total=self.episodes)
        if self._is_started_here:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Removes the bar."""
        self._bars.remove_task(self._task)
        if self._is_started_here:
            self._bars.stop()

    def begin(self, left: int, earlier: Sequence[Episode]) -> None:
        """`left` episodes are to be sampled by this process; those of an `earlier` attempt do not count in its time."""
        self.episodes, self.earlier = left + len(earlier), len(earlier)
        self._bars.update(self._task, total=self.episodes)
        self.add(earlier)

    def add(self, finished: Sequence[Episode]) -> None:
        """Counts episodes that have just ended."""
        self.done += len(finished)
        self.correct += sum(is_correct(episode) for episode in finished)
        if not self.done:
            return
        accuracy = f"strict {wilson(self.correct / self.done, max(1, self.done // self.samples))}"
        self._bars.update(self._task, completed=self.done, description=f"evaluating, {accuracy}")
        now = time.monotonic()
        if not messages.is_terminal and finished and now - self._printed >= SECONDS and self.done < self.episodes:
            self._printed = now
            left = (now - self._started) / max(1, self.done - self.earlier) * (self.episodes - self.done)
            done, problems = self.done // self.samples, self.episodes // self.samples
            messages.print(
                f"evaluating: {done} of {problems} problems, {accuracy}, about {format_duration(left)} left",
                soft_wrap=True,
            )
