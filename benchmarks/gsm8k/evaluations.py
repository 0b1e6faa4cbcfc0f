"""The evaluations of every model of a recipe, and what their JSON files say together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmgym.evaluation.statistics import mcnemar, wilson


@dataclass(frozen=True)
class Measure:
    """One run of `lmgym eval`."""

    name: str
    flags: tuple[str, ...]


MEASURES = (
    Measure("test", ("--split", "test", "--problems", "1319")),
    Measure("sampled", ("--split", "test", "--problems", "300", "--samples", "8", "--sample_temperature", "0.8")),
    Measure("svamp", ("--eval_env", "svamp", "--split", "test", "--problems", "1000")),
)


def row(name: str, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The figures of one model, from its evaluations by the name of the measure."""
    test, sampled, svamp = found["test"], found["sampled"], found["svamp"]
    return {
        "name": name,
        "problems": len(test["solved"]),
        **{key: _share(test, key) for key in ("strict", "lenient")},
        **{key: test[f"eval/{key}"] for key in ("unparsed", "cut_off", "mean_length")},
        "sampled_problems": len(sampled["solved"]),
        "pass@8": sampled["eval/pass@8"],
        "maj@8": sampled["eval/maj@8"],
        "svamp": _share(svamp, "strict"),
        "solved": "".join("1" if share else "0" for share in test["solved"]),
        "solved_leniently": "".join("1" if share else "0" for share in test["solved_leniently"]),
        "parsed": "".join("1" if share else "0" for share in test["parsed"]),
    }


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The gain of one model over another on the same test problems, with p-values of paired tests."""
    parsed = [index for index, mark in enumerate(before["parsed"]) if mark == "1"]
    return {
        "from": before["name"],
        "to": after["name"],
        **{
            f"{key}_points": 100 * (after[key]["value"] - before[key]["value"])
            for key in ("strict", "lenient", "svamp")
        },
        "strict_p": _paired(before["solved"], after["solved"]),
        "lenient_p": _paired(before["solved_leniently"], after["solved_leniently"]),
        "parsed_before": len(parsed),
        "strict_of_parsed": [
            sum(model["solved"][index] == "1" for index in parsed) / max(1, len(parsed)) for model in (before, after)
        ],
    }


def table(rows: list[dict[str, Any]], differences: list[dict[str, Any]]) -> str:
    """Both tables, in Markdown."""
    first = rows[0]
    lines = [
        f"{first['problems']:,} test problems, greedy, 95 % Wilson intervals; pass@8 and maj@8: "
        f"{first['sampled_problems']} of them, temperature 0.8; SVAMP: 1,000 problems, greedy, strict",
        "",
        "| | strict | lenient | unparsed | cut off | length | pass@8 | maj@8 | SVAMP |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in rows:
        cells = [each["name"], *(_shown(each[key]) for key in ("strict", "lenient"))]
        cells += [f"{100 * each[key]:.1f} %" for key in ("unparsed", "cut_off")] + [f"{each['mean_length']:.0f}"]
        cells += [f"{100 * each[key]:.1f} %" for key in ("pass@8", "maj@8")] + [_shown(each["svamp"])]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| step | strict, points | p | lenient, points | p | strict where the answer parsed before |",
        "|---|---|---|---|---|---|",
    ]
    for each in differences:
        was, now = (100 * share for share in each["strict_of_parsed"])
        lines.append(
            f"| {each['from']} → {each['to']} | {each['strict_points']:+.1f} | {each['strict_p']:.2g} | "
            f"{each['lenient_points']:+.1f} | {each['lenient_p']:.2g} | {was:.1f} → {now:.1f} % of "
            f"{each['parsed_before']} |"
        )
    return "\n".join(lines)


def _share(evaluation: dict[str, Any], key: str) -> dict[str, float]:
    value = evaluation[f"eval/{key}"]
    interval = wilson(value, len(evaluation["solved"]))
    return {"value": value, "low": interval.low, "high": interval.high}


def _shown(share: dict[str, float]) -> str:
    value, low, high = (100 * share[key] for key in ("value", "low", "high"))
    return f"{value:.1f} % [{low:.1f}, {high:.1f}]"


def _paired(before: str, after: str) -> float:
    pairs = list(zip(before, after, strict=True))
    return mcnemar(pairs.count(("1", "0")), pairs.count(("0", "1")))
