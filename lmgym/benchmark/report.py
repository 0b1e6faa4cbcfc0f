"""The measurements as Markdown and as a picture."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from lmgym.errors import UserError


def table(report: dict[str, Any]) -> str:
    """All comparisons, then how the cost of an iteration grows."""
    machine = report["machine"]
    speed = machine["matrix_products_per_second"]
    lines = [
        f"{machine['threads']} threads, {machine['dtype']}; matrix products run at up to {speed / 1e9:.0f} GFLOPS.",
        "",
        "| workload | who | tokens/s | seconds per run | lmgym is faster by | peak memory | share of matrix products |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, comparison in report["comparisons"].items():
        if comparison["section"] == "growth":
            continue
        ours = comparison["results"][0]
        for result in comparison["results"]:
            faster = "" if result is ours else f"{_rate(ours) / _rate(result):.1f}×"
            cells = [name if result is ours else "", result["name"], f"{_rate(result):.0f}", _seconds(result), faster]
            cells += [f"{result['peak_bytes'] / 1e9:.1f} GB", share_of_products(result, speed)]
            lines.append("| " + " | ".join(cells) + " |")
    grown = [item for item in report["comparisons"].items() if item[1]["section"] == "growth"]
    if grown:
        lines += ["", "| lmgym alone | tokens/s | seconds per run | peak memory |", "|---|---|---|---|"]
    for name, comparison in grown:
        result = comparison["results"][0]
        lines.append(f"| {name} | {_rate(result):.0f} | {_seconds(result)} | {result['peak_bytes'] / 1e9:.1f} GB |")
    return "\n".join(lines) + "\n"


def share_of_products(result: dict[str, Any], speed: float) -> str:
    """How much of the time the matrix products alone would have taken, for collecting and for learning."""
    detail, parts = result["detail"], []
    for phase in ("collecting", "learning"):
        if f"{phase}_products" in detail:
            seconds = detail.get(phase, statistics.median(result["seconds"]))
            parts.append(f"{phase} {detail[f'{phase}_products'] / speed / seconds:.0%}")
    return ", ".join(parts)


def draw(report: dict[str, Any], path: Path) -> None:
    """Tokens per second of all contestants, and seconds per iteration as its parts grow."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("the picture needs matplotlib; install it with: pip install 'lmgym[plot]'.") from None
    comparisons = report["comparisons"]
    compared = [comparison for comparison in comparisons.values() if len(comparison["results"]) > 1]
    bars = [(comparison, result) for comparison in compared for result in comparison["results"]]
    figure = Figure(figsize=(9, 2.2 + 0.32 * len(bars) + 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, height_ratios=[max(len(bars), 1), 8])
    labels = [f"{_short(comparison['workload'])}   {result['name']}" for comparison, result in bars]
    colors = ["C0" if result["name"] == "lmgym" else "0.7" for _, result in bars]
    rates = [_rate(result) for _, result in bars]
    top.barh(range(len(bars)), rates, color=colors)
    for place, rate in enumerate(rates):
        top.text(rate, place, f" {rate:.0f}", va="center", fontsize=8)
    top.set_yticks(range(len(bars)), labels, fontsize=8)
    top.invert_yaxis()
    top.set_xlabel("tokens per second, all costs included")
    grown = [comparison for comparison in comparisons.values() if comparison["section"] == "growth"]
    for field, label in GROWTH.items():
        points = sorted(
            (comparison["workload"][field], statistics.median(comparison["results"][0]["seconds"]))
            for comparison in grown
            if all(comparison["workload"][other] == STANDARD[other] for other in GROWTH if other != field)
        )
        if points:
            bottom.plot(*zip(*points, strict=True), "o-", label=label)
    bottom.set_xscale("log", base=2)
    bottom.set_ylim(bottom=0)
    bottom.set_ylabel("seconds per iteration")
    bottom.set_xlabel("group size, shots, tokens per episode or turns, the others being 8, 0, 64 and 1")
    if grown:
        bottom.legend(fontsize=8)
    figure.savefig(path, dpi=130)


GROWTH = {"group_size": "group size", "shots": "shots", "new_tokens": "tokens per episode", "turns": "turns"}
STANDARD = {"group_size": 8, "shots": 0, "new_tokens": 64, "turns": 1}


def _short(work: dict[str, Any]) -> str:
    turns = f", {work['turns']} turns" if work["turns"] > 1 else ""
    return f"{'iteration' if work['learns'] else 'rollouts'} {work['shots']}-shot{turns}"


def _rate(result: dict[str, Any]) -> float:
    return float(result["tokens"] / statistics.median(result["seconds"]))


def _seconds(result: dict[str, Any]) -> str:
    low, high = min(result["seconds"]), max(result["seconds"])
    middle = statistics.median(result["seconds"])
    return f"{middle:.1f}" if low == high else f"{middle:.1f} ({low:.1f}–{high:.1f})"
