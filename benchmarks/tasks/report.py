"""The figures of a run, and all runs as a table and a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.recipe_table import share


def read_run(folder: Path) -> dict[str, Any]:
    """Evaluations, minutes, the paired p-value and the curves of training."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    outcome = json.loads((folder / "results.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    assert not outcome["contaminated"], f"{folder} is contaminated"
    return {
        "seed": config["seed"],
        "dtype": outcome["dtype"],
        "minutes": round(max(row["seconds"] for row in rows) / 60, 1),
        "p_value": outcome["paired_p_value"],
        "evaluations": [row for row in rows if "eval/strict" in row],
        "training": [
            {key: row[key] for key in row if key == "iteration" or key.startswith(("accuracy", "reward", "failed"))}
            for row in rows
            if "accuracy" in row
        ],
    }


def table(runs: list[dict[str, Any]]) -> str:
    """The runs as Markdown; the environments of a mixture have rows of their own."""
    lines = [
        "| run | task | strict before | strict after | points | paired p | minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        first, last = run["evaluations"][0], run["evaluations"][-1]
        points = 100 * (last["eval/strict"] - first["eval/strict"])
        cells = [run["name"], run["shows"], share(first, "strict"), share(last, "strict"), f"{points:+.1f}"]
        lines.append("| " + " | ".join([*cells, f"{run['p_value']:.0e}", str(run["minutes"])]) + " |")
        for name in (key for key in first if key.startswith("eval/strict/")):
            was, now = 100 * first[name], 100 * last[name]
            member = name.removeprefix("eval/strict/")
            lines.append(f"| | … of these {member} | {was:.1f} % | {now:.1f} % | {now - was:+.1f} | | |")
    return "\n".join(lines)


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Held-out accuracy with its intervals, and as a thin line that of the sampled training episodes."""
    figure = Figure(figsize=(3.2 * len(runs), 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, run in zip(figure.subplots(1, len(runs), sharey=True, squeeze=False)[0], runs, strict=True):
        rows = run["evaluations"]
        values = [row["eval/strict"] for row in rows]
        below = [row["eval/strict"] - row["eval/strict_low"] for row in rows]
        above = [row["eval/strict_high"] - row["eval/strict"] for row in rows]
        steps = [row["iteration"] for row in rows]
        axes.errorbar(steps, values, [below, above], fmt="o-", capsize=3)
        axes.plot(
            [row["iteration"] for row in run["training"]], [row["accuracy"] for row in run["training"]], alpha=0.4
        )
        for number, name in enumerate(key for key in rows[0] if key.startswith("eval/strict/")):
            axes.plot(steps, [row[name] for row in rows], "--", color=f"C{number + 2}", label=name.split("/")[-1])
            axes.legend(fontsize=7)
        axes.set(xlabel="iteration", ylim=(0, 1))
        axes.set_title(run["name"], size=10)
    figure.suptitle("strict accuracy on 200 held-out problems, greedy, 95 % intervals; thin: training episodes", size=9)
    figure.savefig(path, dpi=110)
