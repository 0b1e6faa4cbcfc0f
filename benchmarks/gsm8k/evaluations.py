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
    """The figures of one model, from its evaluations by the name of the measure; only `test` must be among them."""
    test, sampled, svamp = found["test"], found.get("sampled"), found.get("svamp")
    return {
        "name": name,
        "problems": len(test["solved"]),
        "dtype": test["dtype"],
        **{key: _share(test, key) for key in ("strict", "lenient")},
        **{key: test[f"eval/{key}"] for key in ("unparsed", "cut_off", "mean_length")},
        "sampled_problems": len(sampled["solved"]) if sampled else None,
        **{key: sampled[f"eval/{key}"] if sampled else None for key in ("pass@8", "maj@8")},
        "svamp": _share(svamp, "strict") if svamp else None,
        "solved": _marks(test["solved"]),
        "solved_leniently": _marks(test["solved_leniently"]),
        "parsed": _marks(test["parsed"]),
        "svamp_solved": _marks(svamp["solved"]) if svamp else "",
    }


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The gain of one model over another on the same test problems, with p-values of paired tests."""
    parsed = [index for index, mark in enumerate(before["parsed"]) if mark == "1"]
    return {
        "from": before["name"],
        "to": after["name"],
        **{f"{key}_points": _points(before[key], after[key]) for key in ("strict", "lenient", "svamp")},
        "strict_p": _paired(before["solved"], after["solved"]),
        "lenient_p": _paired(before["solved_leniently"], after["solved_leniently"]),
        "svamp_p": _paired(before["svamp_solved"], after["svamp_solved"]),
        "parsed_before": len(parsed),
        "strict_of_parsed": [
            sum(model["solved"][index] == "1" for index in parsed) / max(1, len(parsed)) for model in (before, after)
        ],
    }


def table(rows: list[dict[str, Any]], differences: list[dict[str, Any]]) -> str:
    """Both tables, in Markdown."""
    sampled = next((each["sampled_problems"] for each in rows if each["sampled_problems"]), 0)
    lines = [
        f"{rows[0]['problems']:,} test problems, greedy, 95 % Wilson intervals, products in "
        f"{', '.join(dict.fromkeys(each['dtype'] for each in rows))}; pass@8 and maj@8: {sampled} of them, temperature "
        "0.8; SVAMP: 1,000 problems, greedy, strict; –: not measured",
        "",
        "| | strict | lenient | unparsed | cut off | length | pass@8 | maj@8 | SVAMP |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in rows:
        cells = [each["name"], *(_shown(each[key]) for key in ("strict", "lenient"))]
        cells += [_percent(each[key]) for key in ("unparsed", "cut_off")] + [f"{each['mean_length']:.0f}"]
        cells += [_percent(each[key]) for key in ("pass@8", "maj@8")] + [_shown(each["svamp"])]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| step | strict, points | p | lenient, points | p | strict where the answer parsed before | SVAMP | p |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in differences:
        was, now = (100 * share for share in each["strict_of_parsed"])
        lines.append(
            f"| {each['from']} → {each['to']} | {_gain(each['strict_points'])} | {_p_value(each['strict_p'])} | "
            f"{_gain(each['lenient_points'])} | {_p_value(each['lenient_p'])} | {was:.1f} → {now:.1f} % of "
            f"{each['parsed_before']} | {_gain(each['svamp_points'])} | {_p_value(each['svamp_p'])} |"
        )
    return "\n".join(lines)


def _share(evaluation: dict[str, Any], key: str) -> dict[str, float]:
    value = evaluation[f"eval/{key}"]
    interval = wilson(value, len(evaluation["solved"]))
    return {"value": value, "low": interval.low, "high": interval.high}


def _marks(shares: list[float]) -> str:
    """A character per problem: 1 where it was solved."""
    return "".join("1" if share else "0" for share in shares)


def _points(before: dict[str, float] | None, after: dict[str, float] | None) -> float | None:
    return 100 * (after["value"] - before["value"]) if before and after else None


def _paired(before: str, after: str) -> float | None:
    if not (before and after):
        return None
    pairs = list(zip(before, after, strict=True))
    return mcnemar(pairs.count(("1", "0")), pairs.count(("0", "1")))


def _shown(share: dict[str, float] | None) -> str:
    if share is None:
        return "–"
    value, low, high = (100 * share[key] for key in ("value", "low", "high"))
    return f"{value:.1f} % [{low:.1f}, {high:.1f}]"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _gain(points: float | None) -> str:
    return "–" if points is None else f"{points:+.1f}"


def _p_value(p: float | None) -> str:
    return "–" if p is None else f"{p:.2g}"
