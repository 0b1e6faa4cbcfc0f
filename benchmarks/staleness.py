"""`python -m benchmarks.staleness`: time and accuracy of a run on servers at several values of --max_staleness.

Server and learner are processes with one thread each, so that neither slows the other down on two cores. Finished runs
are not repeated.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from lmgym.console import results
from lmgym.evaluation.statistics import wilson

HERE = Path(__file__).parent


@dataclass
class Settings:
    """What to measure."""

    staleness: tuple[int, ...] = (0, 1, 2, 4)
    """Values of --max_staleness."""
    servers: int = 1
    """Servers, each with a thread of its own."""
    runs: str = "runs/staleness"
    """Where the runs are kept."""
    flags: str = "--iterations 12 --problems_per_iteration 8 --group_size 8 --eval_problems 200 --dtype float32"
    """Flags of `lmgym train`."""


def main(settings: Settings) -> None:
    """Trains once for each value, and writes the table."""
    rows = []
    for staleness in settings.staleness:
        out = Path(settings.runs) / f"staleness-{staleness}"
        if not (out / "results.json").exists():
            _train(staleness, settings, out)
        rows.append(_row(staleness, out))
    found = {"flags": settings.flags, "servers": settings.servers, "rows": rows}
    (HERE / "staleness.json").write_text(json.dumps(found, indent=1) + "\n")
    text = _table(rows)
    (HERE / "staleness.md").write_text(text + "\n")
    results.print(text, markup=False, soft_wrap=True)


def _train(staleness: int, settings: Settings, out: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with _running_servers(settings.servers, environment) as urls:
        command = [sys.executable, "-m", "lmgym", "train", *settings.flags.split(), "--max_staleness", str(staleness)]
        command += ["--engine", "vllm", "--servers", ",".join(urls), "--out", str(out)]
        subprocess.run(command, env=environment, check=True)


@contextmanager
def _running_servers(count: int, environment: dict[str, str]) -> Iterator[list[str]]:
    """Starts lmgym's own servers and waits until they answer."""
    ports = [_free_port() for _ in range(count)]
    command = [sys.executable, "-m", "lmgym", "serve", "--engine", "torch", "--dtype", "float32", "--port"]
    processes = [subprocess.Popen([*command, str(port)], env=environment) for port in ports]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    try:
        subprocess.run([sys.executable, "-m", "lmgym", "servers", "--wait", "300", *urls], check=True)
        yield urls
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _row(staleness: int, out: Path) -> dict[str, Any]:
    """What one run measured; its first iteration fills the pipeline and is left out of the times."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    iterations = [line for line in lines if "seconds_learning" in line][1:]
    evaluations = json.loads((out / "results.json").read_text())["evaluations"]
    first, last = (evaluations[key] for key in (min(evaluations, key=int), max(evaluations, key=int)))

    def mean(name: str) -> float:
        return sum(line.get(name, 0.0) for line in iterations) / len(iterations)

    return {
        "max_staleness": staleness,
        "tokens": mean("tokens"),
        "seconds_collecting": mean("seconds_collecting"),
        "seconds_learning": mean("seconds_learning"),
        "seconds": mean("seconds_collecting") + mean("seconds_learning"),
        "staleness": mean("staleness"),
        "dropped_groups": sum(line.get("dropped_groups", 0.0) for line in lines),
        "before": first["eval/strict"],
        "after": last["eval/strict"],
        "problems": json.loads((out / "config.json").read_text())["eval_problems"],
    }


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| --max_staleness | seconds per iteration | waiting for episodes | learning | speed-up | mean age, versions | "
        "groups dropped | held-out strict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["max_staleness"], f"{row['seconds']:.1f}", f"{row['seconds_collecting']:.1f}"]
        cells += [f"{row['seconds_learning']:.1f}", f"{rows[0]['seconds'] / row['seconds']:.2f}×"]
        cells += [f"{row['staleness']:.2f}", f"{row['dropped_groups']:.0f}"]
        cells += [f"{100 * row['before']:.1f} → {wilson(row['after'], row['problems'])}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(tyro.cli(Settings, prog="python -m benchmarks.staleness", use_underscores=True))
