"""The learning curve of a run as an image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lmgym.errors import UserError


def plot_learning_curve(run: Path) -> Path:
    """Plots accuracy or reward with its intervals, and KL, entropy and length below, from the run's metrics.jsonl."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    figure = new_figure(7, 7)
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[3, 1, 1])
    evaluated = [row for row in rows if any(name.endswith("eval/problems") for name in row)]
    if any(row.get("eval/graded", row.get("contaminated_eval/graded", 1.0)) == 0.0 for row in evaluated):
        _draw_rewards(top, rows, evaluated)
    else:
        _draw_accuracies(top, rows, evaluated)
    _draw(middle, rows, "kl", "KL to the reference", color="C2")
    _draw(middle, rows, "entropy", "entropy per token", color="C3")
    _draw(bottom, rows, "length", "tokens per episode", color="C4")
    for axes in (top, middle, bottom):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
    bottom.set_xlabel("iteration")
    figure.suptitle(run.name)
    path = run / "learning_curve.png"
    figure.savefig(path, dpi=130)
    return path


MARKS = (("eval/", "held-out"), ("contaminated_eval/", "CONTAMINATED"))
"""The prefixes of evaluation metrics, and their labels."""


def _draw_accuracies(axes: Any, rows: list[dict[str, float]], evaluated: list[dict[str, float]]) -> None:
    _draw(axes, rows, "accuracy", "training episodes (sampled)", color="0.6", linewidth=1)
    for prefix, mark in MARKS:
        _draw_interval(axes, evaluated, f"{prefix}strict", f"{mark}, strict (95 % interval)", "C0", "o-")
        _draw_interval(axes, evaluated, f"{prefix}lenient", f"{mark}, lenient", "C1", "s--")
    axes.set_ylim(0, 1)
    axes.set_ylabel("accuracy")


def _draw_rewards(axes: Any, rows: list[dict[str, float]], evaluated: list[dict[str, float]]) -> None:
    """Plots the mean reward, for environments that do not grade answers."""
    _draw(axes, rows, "reward", "training episodes (sampled)", color="0.6", linewidth=1)
    for prefix, mark in MARKS:
        _draw_interval(axes, evaluated, f"{prefix}mean_reward", f"{mark} (95 % interval)", "C0", "o-")
    axes.set_ylabel("mean reward")


def new_figure(width: float, height: float) -> Any:
    """An empty figure that needs no display."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("the learning curve needs matplotlib; install it with: pip install 'lmgym[plot]'.") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw(axes: Any, rows: list[dict[str, float]], name: str, label: str, **style: Any) -> None:
    points = [(row["iteration"], row[name]) for row in rows if name in row]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, **style)


def _draw_interval(axes: Any, rows: list[dict[str, float]], name: str, label: str, color: str, style: str) -> None:
    rows = [row for row in rows if name in row]
    if not rows:
        return
    values = [row[name] for row in rows]
    below = [row[name] - row[f"{name}_low"] for row in rows]
    above = [row[f"{name}_high"] - row[name] for row in rows]
    iterations = [row["iteration"] for row in rows]
    axes.errorbar(iterations, values, yerr=[below, above], fmt=style, color=color, label=label, capsize=3)
