"""The learning curve of a run as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lmgym.errors import UserError


def plot_learning_curve(run: Path) -> Path:
    """Draws accuracy with its intervals, and KL, entropy and length beneath, from the run's metrics.jsonl."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    figure = new_figure(7, 7)
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[3, 1, 1])
    _draw(top, rows, "accuracy", "training episodes (sampled)", color="0.6", linewidth=1)
    for prefix, mark in (("eval/", "held-out"), ("contaminated_eval/", "CONTAMINATED")):
        evaluations = [row for row in rows if f"{prefix}strict" in row]
        _draw_interval(top, evaluations, f"{prefix}strict", f"{mark}, strict (95 % interval)", "C0", "o-")
        _draw_interval(top, evaluations, f"{prefix}lenient", f"{mark}, lenient", "C1", "s--")
    top.set_ylim(0, 1)
    top.set_ylabel("accuracy")
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


def new_figure(width: float, height: float) -> Any:
    """An empty figure that needs no screen."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("a picture needs matplotlib; install it with: pip install 'lmgym[plot]'.") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw(axes: Any, rows: list[dict[str, float]], name: str, label: str, **style: Any) -> None:
    points = [(row["iteration"], row[name]) for row in rows if name in row]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, **style)


def _draw_interval(axes: Any, rows: list[dict[str, float]], name: str, label: str, color: str, style: str) -> None:
    if not rows:
        return
    values = [row[name] for row in rows]
    below = [row[name] - row[f"{name}_low"] for row in rows]
    above = [row[f"{name}_high"] - row[name] for row in rows]
    iterations = [row["iteration"] for row in rows]
    axes.errorbar(iterations, values, yerr=[below, above], fmt=style, color=color, label=label, capsize=3)
