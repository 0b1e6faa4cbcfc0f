"""Runs of one recipe with several seeds as a table, a JSON file and a plot.

for seed in 0 1 2; do make train ARGS="--seed $seed --out runs/seed$seed"; done
python benchmarks/recipe_table.py runs/seed0 runs/seed1 runs/seed2
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

HERE = Path(__file__).parent


def read_run(folder: Path) -> dict[str, Any]:
    """Evaluations, minutes, paired p-value, and the largest log-prob differences of sampler and learner."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    results = json.loads((folder / "results.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    assert not results["contaminated"], f"{folder} is contaminated"
    evaluations = [row for row in rows if "eval/strict" in row]
    return {
        "seed": config["seed"],
        "dtype": results["dtype"],
        "minutes": round(max(row["seconds"] for row in rows) / 60, 1),
        "p_value": results["paired_p_value"],
        "logprob_diff": max(row["logprob_diff"] for row in rows if "logprob_diff" in row),
        "logprob_diff_max": max(row["logprob_diff_max"] for row in rows if "logprob_diff_max" in row),
        "evaluations": evaluations,
        "training_accuracy": [[row["iteration"], row["accuracy"]] for row in rows if "accuracy" in row],
    }


def share(row: dict[str, float], name: str) -> str:
    """A share with its interval, in per cent."""
    low, high = (100 * row[f"eval/{name}_{end}"] for end in ("low", "high"))
    return f"{100 * row[f'eval/{name}']:.1f} % [{low:.1f}, {high:.1f}]"


def table(runs: list[dict[str, Any]]) -> str:
    """The runs as Markdown."""
    lines = [
        "| seed | strict before | strict after | points | lenient before | lenient after | paired p | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        first, last = run["evaluations"][0], run["evaluations"][-1]
        points = 100 * (last["eval/strict"] - first["eval/strict"])
        cells = [run["seed"], share(first, "strict"), share(last, "strict"), f"{points:+.1f}"]
        cells += [share(first, "lenient"), share(last, "lenient"), f"{run['p_value']:.0e}", run["minutes"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Held-out accuracy with intervals, and as a thin line the accuracy of the training episodes."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, run in enumerate(runs):
        rows, color = run["evaluations"], f"C{number}"
        steps = [row["iteration"] + 0.08 * (number - 1) for row in rows]
        values = [row["eval/strict"] for row in rows]
        below = [row["eval/strict"] - row["eval/strict_low"] for row in rows]
        above = [row["eval/strict_high"] - row["eval/strict"] for row in rows]
        axes.errorbar(steps, values, [below, above], fmt="o-", color=color, capsize=3, label=f"seed {run['seed']}")
        axes.plot(*zip(*run["training_accuracy"], strict=True), color=color, alpha=0.3, linewidth=1)
    problems = int(runs[0]["evaluations"][0]["eval/problems"])
    axes.set(xlabel="iteration", ylabel="strict accuracy", ylim=(0, 1))
    axes.set_title(
        f"{problems} held-out word problems, greedy, 95 % intervals; thin: sampled training episodes", size=9
    )
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=130)


def main(folders: list[Path]) -> None:
    """Writes default_recipe.json and default_recipe.png beside this file, and the table to standard output."""
    runs = [read_run(folder) for folder in folders]
    (HERE / "default_recipe.json").write_text(json.dumps(runs, indent=1) + "\n")
    draw(runs, HERE / "default_recipe.png")
    sys.stdout.write(table(runs) + "\n")


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
