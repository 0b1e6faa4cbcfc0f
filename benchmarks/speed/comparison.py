"""One comparison: a workload, lmgym and its baselines in alternating runs, and the times that result."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.speed.baseline import LMGYM, Baseline
from benchmarks.speed.baseline_process import BaselineProcess
from benchmarks.speed.workload import Workload
from lmgym.assets.catalogue import model_folder

THREADS = os.cpu_count() or 1


@dataclass(frozen=True)
class Result:
    """The measured runs of one baseline."""

    name: str
    seconds: tuple[float, ...]
    tokens: int
    peak_bytes: int
    detail: dict[str, float]

    @property
    def tokens_per_second(self) -> float:
        """Tokens of a run by the median of the times."""
        return self.tokens / statistics.median(self.seconds)


def compare(work: Workload, baselines: Sequence[Baseline], repeats: int, dtype: str, folder: Path) -> list[Result]:
    """Measures lmgym and the baselines in alternating runs; one warm-up run each is discarded. lmgym comes first."""
    folder.mkdir(parents=True, exist_ok=True)
    prompts_file = folder / "prompts.json"
    common: dict[str, Any] = {"threads": THREADS, "dtype": dtype, "scratch": str(folder / "scratch")}
    of_lmgym = common | {"workload": asdict(work), "prompts_file": str(prompts_file)}
    with contextlib.ExitStack() as stack:
        if work.busy:
            stack.enter_context(busy_process())
        processes = [stack.enter_context(BaselineProcess(LMGYM, of_lmgym, folder))]
        processes[0].run()
        prompts = json.loads(prompts_file.read_text())
        of_others = common | prompts | {"model": str(model_folder(work.model)), "new_tokens": work.new_tokens}
        of_others |= {"group_size": work.group_size, "turns": work.turns, "layers": work.layers}
        for baseline in baselines:
            settings = of_lmgym if baseline.script == LMGYM.script else of_others
            process = stack.enter_context(BaselineProcess(baseline, settings, folder))
            processes.append(process)
            if baseline.warm_up:
                process.run()
        for process in processes:
            process.runs.clear()
        for _ in range(repeats):
            for process in processes:
                process.run()
    return [_result(process) for process in processes]


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """A process that keeps a core busy until the block ends."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _result(process: BaselineProcess) -> Result:
    runs = process.runs
    parts = {key for run in runs for key in run} - {"seconds", "tokens"}
    return Result(
        name=process.baseline.name,
        seconds=tuple(run["seconds"] for run in runs),
        tokens=runs[0]["tokens"],
        peak_bytes=process.peak_bytes,
        detail={part: statistics.median(run[part] for run in runs) for part in sorted(parts)},
    )
