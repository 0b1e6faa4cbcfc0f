"""The results as Markdown tables and as a plot."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from lmgym.runs.plotting import new_figure

GROWTH = {"group_size": "group size", "shots": "shots", "new_tokens": "tokens per episode", "turns": "turns"}
STANDARD = {"group_size": 8, "shots": 0, "new_tokens": 64, "turns": 1}


def table(report: dict[str, Any]) -> str:
    """The comparisons with other libraries, then what was measured of lmgym alone."""
    machine, comparisons = report["machine"], report["comparisons"]
    speeds: dict[str, list[float]] = {}
    for each in comparisons.values():
        speeds.setdefault(each["dtype"], []).append(each["matrix_products_per_second"] / 1e9)
    products = ", ".join(f"{min(found):.0f}–{max(found):.0f} GFLOPS in {dtype}" for dtype, found in speeds.items())
    lines = [
        f"{machine['threads']} threads, {machine['bytes_per_second'] / 1e9:.0f} GB/s of memory. Matrix products run at "
        f"up to {products}, measured before each section.",
        "",
        "| workload | library | tokens/s | seconds per run | speed-up of lmgym | peak memory | "
        "share of matrix products |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, comparison in comparisons.items():
        lmgym, *others = comparison["results"]
        if not others:
            continue
        for result in comparison["results"]:
            faster = "" if result is lmgym else f"{_rate(lmgym) / _rate(result):.1f}×"
            cells = [name if result is lmgym else "", result["name"], _rate_text(result), _seconds(result), faster]
            lines.append("| " + " | ".join([*cells, *_memory_and_share(result, comparison)]) + " |")
    alone = [item for item in comparisons.items() if len(item[1]["results"]) == 1]
    if alone:
        lines += ["", "| lmgym alone | tokens/s | seconds per run | peak memory | share of matrix products |"]
        lines += ["|---|---|---|---|---|"]
    for name, comparison in alone:
        result = comparison["results"][0]
        cells = [name, _rate_text(result), _seconds(result), *_memory_and_share(result, comparison)]
        lines.append("| " + " | ".join(cells) + " |")
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
    """The speed-up over other libraries; time and memory as lengths or the workload grow."""
    comparisons = list(report["comparisons"].values())
    # Of the learning section only what is not drawn by length.
    compared = [each for each in comparisons if not _is_chain(each)]
    bars = [(each, other) for each in compared for other in each["results"][1:] if "lmgym" not in other["name"]]
    panels = {
        _draw_chains: [each for each in comparisons if _is_chain(each)],
        _draw_prefill: [each for each in comparisons if each["section"] == "prefill"],
        _draw_growth: [each for each in comparisons if each["section"] == "growth"],
    }
    shown = {panel: given for panel, given in panels.items() if given}
    heights = [max(len(bars), 1), *([7] * len(shown))]
    figure = new_figure(9, 1 + 0.32 * sum(heights))
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    _draw_ratios(parts[0].subplots(), bars)
    for part, (panel, given) in zip(parts[1:], shown.items(), strict=True):
        panel(part, given)
    figure.savefig(path, dpi=130)


def _draw_ratios(axes: Any, bars: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """One bar for each other library of a comparison, with the tokens per second of both."""
    ratios = [_rate(comparison["results"][0]) / _rate(other) for comparison, other in bars]
    axes.barh(range(len(bars)), ratios, color="C0")
    for place, (ratio, (comparison, other)) in enumerate(zip(ratios, bars, strict=True)):
        rates = f"{_rate(comparison['results'][0]):.0f} and {_rate(other):.0f} tokens/s"
        axes.text(ratio, place, f" {ratio:.1f}×   {rates}", va="center", fontsize=8)
    axes.axvline(1, color="0.4", linewidth=1)
    axes.set_xlim(0, 1.35 * max(ratios, default=1))
    axes.set_yticks(range(len(bars)), [f"{_short(each)}   {other['name']}" for each, other in bars], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("how many times as fast lmgym is, all costs included")


def _draw_chains(figure: Any, chains: list[dict[str, Any]]) -> None:
    """Time and memory of an optimiser step by the length of one episode."""
    of_time, of_memory = figure.subplots(1, 2)
    for name in dict.fromkeys(result["name"] for chain in chains for result in chain["results"]):
        points = sorted(
            (_tokens(chain), statistics.median(result["seconds"]), result["peak_bytes"] / 1e9)
            for chain in chains
            for result in chain["results"]
            if result["name"] == name
        )
        lengths, seconds, gigabytes = zip(*points, strict=True)
        color = "C0" if name == "lmgym" else "0.6"
        of_time.plot(lengths, seconds, "o-", color=color, label=name)
        of_memory.plot(lengths, gigabytes, "o-", color=color, label=name)
    for axes, label in ((of_time, "seconds"), (of_memory, "GB, whole process")):
        axes.set_ylim(bottom=0)
        axes.set_ylabel(label)
        axes.set_xlabel("tokens of one episode; learning, 4 layers")
        axes.legend(fontsize=8)


def _draw_prefill(figure: Any, prefills: list[dict[str, Any]]) -> None:
    axes = figure.subplots()
    points = sorted((each["workload"]["prompt_tokens"], each["results"][0]["peak_bytes"] / 1e9) for each in prefills)
    axes.plot(*zip(*points, strict=True), "o-")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens of the prompt; lmgym alone")
    axes.set_ylabel("GB, whole process")


def _draw_growth(figure: Any, grown: list[dict[str, Any]]) -> None:
    axes = figure.subplots()
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


def _is_chain(comparison: dict[str, Any]) -> bool:
    work = comparison["workload"]
    return comparison["section"] == "learning" and work["problems"] * work["group_size"] == 1


def _tokens(comparison: dict[str, Any]) -> int:
    return int(comparison["workload"]["prompt_tokens"] + comparison["workload"]["new_tokens"])


def _short(comparison: dict[str, Any]) -> str:
    """The section and what tells its workloads apart."""
    work, section = comparison["workload"], comparison["section"]
    told = {
        "rows": f"{work['problems'] * work['group_size']}",
        "iteration": f"{work['shots']}-shot",
        "few_shot": "iteration",
        "stepwise": f"{work['turns']} turns",
        "learning": "groups, 4 layers",
        "groups": "all layers",
    }
    dtype = "" if comparison["dtype"] == "float32" else f", {comparison['dtype']}"
    return " ".join(filter(None, (section, told.get(section, "")))) + dtype


def _rate(result: dict[str, Any]) -> float:
    return float(result["tokens"] / statistics.median(result["seconds"]))


def _rate_text(result: dict[str, Any]) -> str:
    return f"{_rate(result):.0f}"


def _seconds(result: dict[str, Any]) -> str:
    low, high = min(result["seconds"]), max(result["seconds"])
    middle = statistics.median(result["seconds"])
    return f"{middle:.1f}" if low == high else f"{middle:.1f} ({low:.1f}–{high:.1f})"


def _memory_and_share(result: dict[str, Any], comparison: dict[str, Any]) -> list[str]:
    return [f"{result['peak_bytes'] / 1e9:.1f} GB", share_of_products(result, comparison["matrix_products_per_second"])]
