"""`lmgym bench`: how fast lmgym is here, beside other libraries and beside what the machine allows."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lmgym.assets.catalogue import cache_dir
from lmgym.assets.storage import write_text
from lmgym.benchmark.comparison import THREADS, Result, Rival, compare
from lmgym.benchmark.peers import TRL, VLLM, Peer
from lmgym.benchmark.report import draw, table
from lmgym.benchmark.workload import Workload
from lmgym.console import messages, results
from lmgym.errors import UserError

ROLLOUTS = Workload(new_tokens=64)
STEPWISE = Workload(shots=5, new_tokens=96, turns=6)
ITERATION = Workload(new_tokens=128, learns=True)
FEW_SHOT_ITERATION = Workload(problems=4, shots=5, new_tokens=128, learns=True)
SMALL = Workload(problems=4, new_tokens=64, learns=True)
DISTURBED = Workload(problems=1, new_tokens=16)
"""Small: threads that spin beside a busy process need minutes where others need seconds."""
SPINNING = {"GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"}
"""How OpenMP's threads wait by default."""


@dataclass
class BenchSettings:
    """What to measure."""

    sections: tuple[str, ...] = ("rollouts", "stepwise", "iteration", "growth")
    """Any of rollouts (transformers generate, vLLM), stepwise (naive loop), iteration (TRL), growth (lmgym alone),
    busy (lmgym beside a busy process, where threads that spin may take a quarter of an hour)."""
    repeats: int = 3
    """Runs that count; one more before them does not, but for TRL, whose runs take minutes."""
    peers: bool = True
    """Measure vLLM and TRL too; each is installed into a virtual environment of its own when first needed."""
    out: str = "benchmarks"
    """The folder that gets speed.json, speed.md and speed.png; sections measured before and not now are kept."""
    dtype: str = "float32"
    """What everybody computes in."""


def bench(settings: BenchSettings) -> None:
    """Measures section by section and writes the report after each."""
    unknown = sorted(set(settings.sections) - set(SECTIONS))
    if unknown or settings.repeats < 1:
        raise UserError(f"--sections may name {', '.join(SECTIONS)}, and --repeats must be at least 1.")
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "speed.json"
    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"comparisons": {}}
    report["machine"] = {"threads": THREADS, "dtype": settings.dtype, "processor": platform.machine()}
    for section in settings.sections:
        speed = _matrix_product_speed(settings.dtype)
        for work, rivals, repeats in SECTIONS[section](settings):
            messages.print(work.name, soft_wrap=True)
            found = compare(work, rivals, repeats, settings.dtype, cache_dir() / "benchmark")
            report["comparisons"][work.name] = {
                "section": section,
                "matrix_products_per_second": speed,
                "workload": asdict(work),
                "results": [asdict(result) for result in found],
            }
            for result in found:
                messages.print(_line(result), soft_wrap=True)
            write_text(path, json.dumps(report, indent=1))
    write_text(out / "speed.md", table(report))
    draw(report, out / "speed.png")
    results.print(table(report), markup=False, soft_wrap=True)


Comparison = tuple[Workload, list[Rival], int]


def _rollouts(settings: BenchSettings) -> list[Comparison]:
    rivals = [Rival("transformers generate", "generate", lambda: sys.executable, {})]
    if settings.peers:
        rivals.append(Rival("vLLM", "vllm_offline", _installed(VLLM), {}))
    return [(ROLLOUTS, rivals, settings.repeats)]


def _stepwise(settings: BenchSettings) -> list[Comparison]:
    return [(STEPWISE, [Rival("naive loop", "naive_stepwise", lambda: sys.executable, {})], settings.repeats)]


def _iteration(settings: BenchSettings) -> list[Comparison]:
    if not settings.peers:
        return [(ITERATION, [], settings.repeats), (FEW_SHOT_ITERATION, [], settings.repeats)]

    def trl(rows: int) -> list[Rival]:
        """With as many rows per pass as 24 GB hold without recomputing activations, which is fastest for TRL."""
        return [Rival("TRL GRPOTrainer", "trl_grpo", _installed(TRL), {"trl_rows": rows}, warms_up=False)]

    return [(ITERATION, trl(8), settings.repeats), (FEW_SHOT_ITERATION, trl(4), settings.repeats)]


def _busy(settings: BenchSettings) -> list[Comparison]:
    """lmgym against itself with OpenMP's own way of waiting, on an idle machine and beside a busy process."""
    spinning = [Rival("lmgym, spinning threads", "ours", lambda: sys.executable, {}, environment=SPINNING)]
    return [(replace(DISTURBED, busy=busy), spinning, settings.repeats) for busy in (False, True)]


def _growth(settings: BenchSettings) -> list[Comparison]:
    grown = [replace(SMALL, group_size=size) for size in (4, 8, 16)]
    grown += [replace(SMALL, shots=shots) for shots in (1, 2, 5)]
    grown += [replace(SMALL, new_tokens=tokens) for tokens in (32, 128)]
    grown += [replace(SMALL, turns=turns) for turns in (2, 4, 8)]
    return [(work, [], settings.repeats) for work in grown]


SECTIONS: dict[str, Callable[[BenchSettings], list[Comparison]]] = {
    "rollouts": _rollouts,
    "stepwise": _stepwise,
    "iteration": _iteration,
    "busy": _busy,
    "growth": _growth,
}


def _installed(peer: Peer) -> Callable[[], str]:
    return lambda: peer.python(cache_dir() / "peers")


def _matrix_product_speed(dtype: str) -> float:
    import torch

    from lmgym.benchmark.machine import matrix_product_speed

    torch.set_num_threads(THREADS)
    return matrix_product_speed(getattr(torch, dtype))


def _line(result: Result) -> str:
    times = ", ".join(f"{seconds:.1f}" for seconds in result.seconds)
    return (
        f"  {result.name}: {result.tokens_per_second:.0f} tokens/s ({times} s), "
        f"{result.peak_bytes / 1e9:.1f} GB at most"
    )
