"""`python -m benchmarks.speed`: measures the speed of lmgym beside other libraries and writes a report."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tyro

from benchmarks.speed.comparison import THREADS, Result, compare
from benchmarks.speed.report import draw, table
from benchmarks.speed.sections import SECTIONS
from benchmarks.speed.settings import BenchSettings
from lmgym.assets.catalogue import cache_dir
from lmgym.assets.storage import write_text
from lmgym.console import messages, results
from lmgym.errors import UserError


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: exit code 0, or 2 for a user's mistake."""
    settings = tyro.cli(
        BenchSettings, prog="python -m benchmarks.speed", args=arguments, use_underscores=True, default=BenchSettings()
    )
    try:
        bench(settings)
    except UserError as error:
        messages.print(f"benchmarks.speed: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)


def bench(settings: BenchSettings) -> None:
    """Measures section by section and writes the results after each comparison."""
    unknown = sorted(set(settings.sections) - set(SECTIONS))
    if unknown or settings.repeats < 1:
        raise UserError(f"--sections may name {', '.join(SECTIONS)}, and --repeats must be at least 1.")
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "speed.json"
    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"comparisons": {}}
    report["machine"] = {"threads": THREADS, "processor": platform.machine(), "bytes_per_second": _bandwidth()}
    for section in settings.sections:
        speed = _matrix_product_speed(settings.dtype)
        for comparison in SECTIONS[section](settings):
            work = comparison.work
            messages.print(f"{work.name} ({settings.dtype})", soft_wrap=True)
            measured = compare(work, comparison.baselines, settings.repeats, settings.dtype, cache_dir() / "benchmark")
            name = work.name if settings.dtype == "float32" else f"{work.name}, {settings.dtype}"
            report["comparisons"][name] = {
                "section": section,
                "dtype": settings.dtype,
                "matrix_products_per_second": speed,
                "workload": asdict(work),
                "results": [asdict(result) for result in measured],
            }
            for result in measured:
                messages.print(_line(result), soft_wrap=True)
            write_text(path, json.dumps(report, indent=1))
    write_text(out / "speed.md", table(report))
    draw(report, out / "speed.png")
    results.print(table(report), markup=False, soft_wrap=True)


def _bandwidth() -> float:
    import torch

    from benchmarks.speed.machine import memory_bandwidth

    torch.set_num_threads(THREADS)
    return memory_bandwidth()


def _matrix_product_speed(dtype: str) -> float:
    import torch

    from benchmarks.speed.machine import matrix_product_speed

    torch.set_num_threads(THREADS)
    return matrix_product_speed(getattr(torch, dtype))


def _line(result: Result) -> str:
    times = ", ".join(f"{seconds:.1f}" for seconds in result.seconds)
    return (
        f"  {result.name}: {result.tokens_per_second:.0f} tokens/s ({times} s), "
        f"{result.peak_bytes / 1e9:.1f} GB at most"
    )


if __name__ == "__main__":
    main()
