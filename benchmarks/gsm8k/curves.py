"""The learning curves of a recipe: validation problems on the way, test problems at both ends, as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lmgym.runs.plotting import new_figure

Curve = dict[str, list[dict[str, float]]]
"""`iterations`: what each iteration of training showed; `validation`: the evaluations on the way."""

OF_ITERATION = ("iteration", "accuracy", "length", "entropy", "tokens", "seconds_collecting", "seconds_learning")
OF_EVALUATION = ("iteration", "eval/problems", "eval/strict", "eval/strict_low", "eval/strict_high", "eval/lenient")


def read_curve(run: Path) -> Curve:
    """What the metrics of a run say of its iterations and of its evaluations."""
    path = run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {
        "iterations": [_some(row, OF_ITERATION) for row in rows if "seconds_learning" in row],
        "validation": [_some(row, OF_EVALUATION) for row in rows if "eval/strict" in row],
    }


def draw(rows: list[dict[str, Any]], curves: dict[str, Curve], path: Path) -> None:
    """Sampled training and validation problems over the iterations, and beside them all test problems after each step.

    Until a run has seen all training problems, those of an iteration are new to it.
    """
    figure = new_figure(9, 4)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
    for number, (name, curve) in enumerate(curves.items()):
        color = f"C{number}"
        sampled = [(each["iteration"], each["accuracy"]) for each in curve["iterations"] if "accuracy" in each]
        if sampled and any(share < 1 for _, share in sampled):  # not those of worked solutions
            label = f"{name}: training problems, sampled"
            left.plot(*zip(*sampled, strict=True), ".-", color=color, alpha=0.5, linewidth=1, label=label)
        points = curve["validation"]
        if len(points) < 2:
            continue
        iterations, values = [point["iteration"] for point in points], [point["eval/strict"] for point in points]
        below = [point["eval/strict"] - point["eval/strict_low"] for point in points]
        above = [point["eval/strict_high"] - point["eval/strict"] for point in points]
        label = f"{name}: {points[0]['eval/problems']:.0f} validation problems, greedy, strict"
        left.errorbar(iterations, values, [below, above], fmt="o-", color=color, capsize=3, label=label)
    names = [each["name"] for each in rows]
    for key, color, offset in (("strict", "C0", -0.08), ("lenient", "C1", 0.08)):
        shares = [each[key] for each in rows]
        below = [share["value"] - share["low"] for share in shares]
        above = [share["high"] - share["value"] for share in shares]
        places = [place + offset for place in range(len(rows))]
        right.errorbar(places, [s["value"] for s in shares], [below, above], fmt="o", color=color, capsize=3, label=key)
    right.set_xticks(range(len(rows)), names)
    left.set(xlabel="iteration", ylabel="accuracy", ylim=(0, None))
    right.set_xlim(-0.5, len(rows) - 0.5)
    left.set_title("on the way", size=10)
    right.set_title(f"all {rows[0]['problems']:,} test problems, greedy", size=10)
    for axes in (left, right):
        axes.grid(axis="y", alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=130)


def _some(row: dict[str, float], names: tuple[str, ...]) -> dict[str, float]:
    return {name: row[name] for name in names if name in row}
