"""The cost model: what must hold whatever the numbers are, and that the table of docs/scale.md is its own."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cost_model import (
    H100,
    MEASURED,
    MODELS,
    Workload,
    best_split,
    check,
    collecting_seconds,
    iteration,
    table,
)

models = st.sampled_from(MODELS[:2])


@given(models, st.integers(8, 256), st.integers(1, 4000))
def test_overlapping_never_takes_longer_and_at_best_halves_the_time(model, gpus, episodes):
    found = iteration(model, H100, gpus, gpus // 2, Workload(episodes))
    assert found.synchronous / 2 <= found.asynchronous <= found.synchronous


@given(models, st.integers(1, 64), st.integers(1, 4000))
def test_more_servers_never_collect_slower(model, servers, episodes):
    work = Workload(episodes)
    fewer, more = (collecting_seconds(model, H100, count, work) for count in (servers, 2 * servers))
    assert more <= fewer * (1 + 1e-9)


@given(models, st.integers(8, 128))
def test_the_best_split_is_not_beaten_by_another(model, gpus):
    work = Workload(64 * gpus)
    best = best_split(model, H100, gpus, work)
    assert best is not None
    for servers in range(1, gpus - 2):
        assert best.asynchronous <= iteration(model, H100, gpus, servers, work).asynchronous or gpus - servers < 3


def test_a_model_that_does_not_fit_is_said_to():
    assert best_split(MODELS[2], H100, 8, Workload(512)) is None


def test_the_page_has_the_tables_of_the_model_and_of_the_measurement():
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    assert table() in page
    assert check(json.loads(MEASURED.read_text())["rows"]) in page
    assert MEASURED.with_suffix(".md").read_text().strip() in page


def test_a_run_that_overlaps_perfectly_is_predicted_exactly():
    rows = [
        {"max_staleness": 0, "tokens": 100.0, "seconds_collecting": 10.0, "seconds_learning": 20.0, "seconds": 30.0},
        {"max_staleness": 1, "tokens": 200.0, "seconds_collecting": 0.0, "seconds_learning": 40.0, "seconds": 40.0},
    ]
    said = check(rows)
    assert "samples 10 and the learner learns 5 tokens per second" in said
    assert "| 1 | 200 | 40.0 s | 40.0 s | 1.00 |" in said
