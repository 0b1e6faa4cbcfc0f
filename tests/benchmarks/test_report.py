"""The report says what was measured: ratios of medians, shares of the matrix products, and what grew."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.speed.__main__ import bench
from benchmarks.speed.report import STANDARD, draw, share_of_products, table
from benchmarks.speed.sections import SECTIONS
from benchmarks.speed.settings import BenchSettings
from benchmarks.speed.workload import Workload
from lmgym.errors import UserError


def result(name: str, seconds: list[float], tokens: int = 1000, **detail: float) -> dict[str, Any]:
    return {"name": name, "seconds": seconds, "tokens": tokens, "peak_bytes": 2_000_000_000, "detail": detail}


def comparison(work: Workload, section: str, *results: dict[str, Any]) -> dict[str, Any]:
    measured = {"section": section, "dtype": "float32", "matrix_products_per_second": 2e11}
    return measured | {"workload": vars(work), "results": list(results)}


STANDARD_ITERATION = Workload(learns=True, group_size=8, shots=0, new_tokens=64, turns=1)
CHAIN = Workload(problems=1, group_size=1, prompt_tokens=100, new_tokens=100, collects=False, learns=True)
REPORT = {
    "machine": {"threads": 2, "processor": "x", "bytes_per_second": 4e10},
    "comparisons": {
        "rollouts": comparison(
            Workload(),
            "rollouts",
            result("lmgym", [1.0, 2.0, 9.0], collecting_products=2e11),
            result("other", [8.0, 7.0, 9.0]),
        ),
        "short": comparison(CHAIN, "learning", result("lmgym", [1.0]), result("plain", [2.0])),
        "long": comparison(replace(CHAIN, new_tokens=500), "learning", result("lmgym", [2.0]), result("plain", [4.0])),
        "prompt": comparison(replace(CHAIN, learns=False), "prefill", result("lmgym", [1.0])),
        "small": comparison(STANDARD_ITERATION, "growth", result("lmgym", [4.0])),
        "large": comparison(replace(STANDARD_ITERATION, group_size=16), "growth", result("lmgym", [6.0])),
    },
}


def test_the_standard_is_the_one_that_growth_is_drawn_around():
    assert {name: vars(STANDARD_ITERATION)[name] for name in STANDARD} == STANDARD


def test_the_table_compares_medians():
    text = table(REPORT)
    assert "| rollouts | lmgym | 500 | 2.0 (1.0–9.0) |  | 2.0 GB | collecting 50% |" in text
    assert "|  | other | 125 | 8.0 (7.0–9.0) | 4.0× | 2.0 GB |  |" in text
    assert "| small | 250 | 4.0 | 2.0 GB |  |" in text
    assert "40 GB/s of memory. Matrix products run at up to 200–200 GFLOPS in float32" in text


def test_the_name_of_a_workload_tells_it_from_all_others():
    comparisons = [each for section in SECTIONS.values() for each in section(BenchSettings())]
    names = [each.work.name for each in comparisons]
    assert len(set(names)) == len({each.work for each in comparisons})


def test_each_phase_is_held_against_its_own_time():
    measured = result("lmgym", [3.0], collecting_products=1e11, learning_products=3e11, collecting=1.0, learning=2.0)
    assert share_of_products(measured, 2e11) == "collecting 50%, learning 75%"


def test_it_can_be_drawn(tmp_path):
    draw(REPORT, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").stat().st_size > 10_000


@pytest.mark.parametrize("settings", [BenchSettings(sections=("speed",)), BenchSettings(repeats=0)])
def test_what_cannot_be_measured_is_refused(settings, tmp_path):
    settings.out = str(tmp_path)
    with pytest.raises(UserError, match="--sections may name rollouts"):
        bench(settings)
