"""One comparison: contestants on a workload, taking turns, and what their times say."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lmgym.assets.catalogue import model_folder
from lmgym.benchmark.process import Contestant
from lmgym.benchmark.workload import Workload

THREADS = os.cpu_count() or 1


@dataclass(frozen=True)
class Rival:
    """Another library on the same workload."""

    name: str
    script: str
    python: Callable[[], str]
    """Its interpreter; asked for only when it is its turn, for it may have to be installed first."""
    settings: dict[str, Any]
    warms_up: bool = True
    """Whether its first run does not count; runs of minutes do without."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that it is started with beside those of this process."""


@dataclass(frozen=True)
class Result:
    """How one contestant did."""

    name: str
    seconds: tuple[float, ...]
    tokens: int
    peak_bytes: int
    detail: dict[str, float]

    @property
    def tokens_per_second(self) -> float:
        """By the median run."""
        return self.tokens / statistics.median(self.seconds)


def compare(work: Workload, rivals: Sequence[Rival], repeats: int, dtype: str, folder: Path) -> list[Result]:
    """Runs lmgym and its rivals in turns, after a run that does not count; lmgym comes first."""
    folder.mkdir(parents=True, exist_ok=True)
    prompts_file = folder / "prompts.json"
    common = {"threads": THREADS, "dtype": dtype, "scratch": str(folder / "scratch")}
    ours = common | {"workload": asdict(work), "prompts_file": str(prompts_file)}
    with contextlib.ExitStack() as stack:
        if work.busy:
            stack.enter_context(busy_process())
        contestants = [stack.enter_context(Contestant("lmgym", "ours", sys.executable, ours, folder))]
        contestants[0].run()
        prompts = json.loads(prompts_file.read_text())
        asked = common | prompts | {"model": str(model_folder(work.model)), "new_tokens": work.new_tokens}
        asked |= {"group_size": work.group_size, "turns": work.turns}
        for rival in rivals:
            told = ours if rival.script == "ours" else asked
            contestant = Contestant(
                rival.name, rival.script, rival.python(), told | rival.settings, folder, rival.environment
            )
            contestants.append(stack.enter_context(contestant))
            if rival.warms_up:
                contestant.run()
        for contestant in contestants:
            contestant.runs.clear()
        for _ in range(repeats):
            for contestant in contestants:
                contestant.run()
    return [_result(contestant) for contestant in contestants]


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """A process that computes for as long as the block lasts."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _result(contestant: Contestant) -> Result:
    counted = contestant.runs
    parts = {key for run in counted for key in run} - {"seconds", "tokens"}
    return Result(
        name=contestant.name,
        seconds=tuple(run["seconds"] for run in counted),
        tokens=counted[0]["tokens"],
        peak_bytes=contestant.peak_bytes,
        detail={part: statistics.median(run[part] for run in counted) for part in sorted(parts)},
    )
