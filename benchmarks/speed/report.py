"""The results as Markdown tables and as a plot."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from lmgym.runs.plotting import new_figure


def table(report: dict[str, Any]) -> str:
    """All comparisons, then the cost of an iteration as one dimension grows."""
    machine = report["machine"]
    speeds = [each["matrix_products_per_second"] / 1e9 for each in report["comparisons"].values()]
    lines = [
        f"{machine['threads']} threads, {machine['dtype']}; matrix products run at up to {min(speeds):.0f}–"
        f"{max(speeds):.0f} GFLOPS, measured before each section.",
        "",
        "| workload | library | tokens/s | seconds per run | speed-up of lmgym | peak memory | "
        "share of matrix products |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, comparison in report["comparisons"].items():
        if comparison["section"] == "growth":
            continue
        lmgym, speed = comparison["results"][0], comparison["matrix_products_per_second"]
        for result in comparison["results"]:
            faster = "" if result is lmgym else f"{_rate(lmgym) / _rate(result):.1f}×"
            cells = [name if result is lmgym else "", result["name"], f"{_rate(result):.0f}", _seconds(result), faster]
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
    """The time of the matrix products alone, as a share of the measured time, for collecting and for learning."""
    detail, parts = result["detail"], []
    for phase in ("collecting", "learning"):
        if f"{phase}_products" in detail:
            seconds = detail.get(phase, statistics.median(result["seconds"]))
            parts.append(f"{phase} {detail[f'{phase}_products'] / speed / seconds:.0%}")
    return ", ".join(parts)


def draw(report: dict[str, Any], path: Path) -> None:
    """Tokens per second of all baselines, and seconds per iteration as one dimension grows."""
    comparisons = report["comparisons"].values()
    bars = [(each, result) for each in comparisons if len(each["results"]) > 1 for result in each["results"]]
    grown = [comparison for comparison in comparisons if comparison["section"] == "growth"]
    heights = [max(len(bars), 1), *([8] if grown else [])]
    figure = new_figure(9, 1 + 0.35 * sum(heights))
    axes = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    _draw_speeds(axes[0], bars)
    if grown:
        _draw_growth(axes[1], grown)
    figure.savefig(path, dpi=130)


def _draw_speeds(axes: Any, bars: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    labels = [f"{_short(comparison['workload'])}   {result['name']}" for comparison, result in bars]
    colors = ["C0" if result["name"] == "lmgym" else "0.7" for _, result in bars]
    rates = [_rate(result) for _, result in bars]
    axes.barh(range(len(bars)), rates, color=colors)
    for place, rate in enumerate(rates):
        axes.text(rate, place, f" {rate:.0f}", va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("tokens per second, all costs included")


def _draw_growth(axes: Any, grown: list[dict[str, Any]]) -> None:
    for field, label in GROWTH.items():
        points = sorted(
            (comparison["workload"][field], statistics.median(comparison["results"][0]["seconds"]))
            for comparison in grown
            if all(comparison["workload"][other] == STANDARD[other] for other in GROWTH if other != field)
        )
        if points:
            axes.plot(*zip(*points, strict=True), "o-", label=label)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("seconds per iteration")
    axes.set_xlabel("group size, shots, tokens per episode or turns, the others being 8, 0, 64 and 1")
    axes.legend(fontsize=8)


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
