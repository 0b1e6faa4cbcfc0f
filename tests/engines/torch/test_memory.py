"""The KV cache stays within the memory it may take, and rows that do not fit wait without losing a token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from conftest import tiny_model
from engine_checks import PREFIX, check_exact, converse_out_of_step, ids, kv_tensors, ragged_requests

from lmgym.engines import memory
from lmgym.engines.engine import Completion, Request
from lmgym.engines.row import Row
from lmgym.engines.torch.engine import MEMORY_SHARE, TorchEngine
from lmgym.engines.torch.kv_cache import CAPACITY_STEP, KVCache


def engine_with_memory(model, rows: int, **settings) -> TorchEngine:
    """An engine whose memory holds so many rows that are not longer than the least capacity."""
    return TorchEngine(model, max_bytes=rows * CAPACITY_STEP * TorchEngine(model)._cache.bytes_per_token, **settings)


def observed(engine: TorchEngine) -> list[tuple[int, int]]:
    """After each pass to come, how many slots run and how many bytes are reserved."""
    seen: list[tuple[int, int]] = []
    real = engine._advance

    def advance() -> None:
        real()
        tensors = kv_tensors(engine._cache)
        seen.append((len(engine._scheduler.running), sum(tensor.numel() * tensor.element_size() for tensor in tensors)))

    engine._advance = advance
    return seen


def growing_requests() -> list[Request]:
    """Without a shared prefix, so that all tokens count; some outgrow the least capacity, and the next, later."""
    lengths = [100, 20, 120, 9, 250, 125, 3, 120]
    return [Request(ids(length, seed), 5 + 4 * seed, seed=seed) for seed, length in enumerate(lengths)]


@pytest.mark.parametrize("done_before", [0, 1, 3])
def test_an_engine_without_its_cache_holds_nothing_and_changes_no_token(done_before):
    model, requests = tiny_model(), ragged_requests(10)
    engine = TorchEngine(model)
    request_ids = engine.submit(requests)
    completions: dict[int, Completion] = {}
    while len(completions) < done_before:
        completions |= engine.wait([request_id for request_id in request_ids if request_id not in completions])
    engine.release_cache()
    assert all(not tensor.numel() for tensor in kv_tensors(engine._cache))
    while len(completions) < len(request_ids):
        completions |= engine.wait([request_id for request_id in request_ids if request_id not in completions])
    check_exact(model, requests, [completions[request_id] for request_id in request_ids])


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 16])
def test_little_memory_changes_no_word(rows):
    model = tiny_model()
    for requests in (ragged_requests(10), growing_requests(), growing_requests()[::-1]):
        engine = engine_with_memory(model, rows)
        seen = observed(engine)
        check_exact(model, requests, engine.generate(requests))
        assert max(running for running, _ in seen) <= rows


@pytest.mark.parametrize("rows", [1, 3])
def test_little_memory_changes_no_word_of_conversations(rows):
    model = tiny_model()
    engine = engine_with_memory(model, rows)
    check_exact(model, *zip(*(each[2:] for each in converse_out_of_step(engine)), strict=True))
    prompts = [ids(60, seed=seed) for seed in range(5)]
    for turn in range(4):  # without a shared prefix, and past the least capacity
        requests = [Request(prompt, 10, seed=10 * turn + seed) for seed, prompt in enumerate(prompts)]
        completions = engine.generate(requests)
        check_exact(model, requests, completions)
        prompts = [
            prompt + tuple(written.token_ids) + ids(13 * (seed % 2), seed=turn)
            for seed, (prompt, written) in enumerate(zip(prompts, completions, strict=True))
        ]


def test_rows_that_outgrow_the_memory_are_sent_back_and_finish_later(monkeypatch):
    model = tiny_model()
    engine = engine_with_memory(model, 3)
    preempted: list[Row] = []
    real = engine._scheduler._preempt
    monkeypatch.setattr(engine._scheduler, "_preempt", lambda: preempted.extend(now := real()) or now)
    requests = [Request(ids(CAPACITY_STEP - 8, seed=seed), 20, seed=seed) for seed in range(3)]
    seen = observed(engine)
    request_ids = engine.submit(requests)
    first = engine.wait(request_ids)
    assert len(first) == 1
    assert len(preempted) == 2
    assert all(0 < len(row.completion.token_ids) < 20 for row in preempted), "what they had written is kept"
    done = first | engine.wait(set(request_ids) - set(first))
    while len(done) < 3:
        done |= engine.wait(set(request_ids) - set(done))
    assert [running for running, _ in seen][:: len(seen) - 1] == [3, 1]
    check_exact(model, requests, [done[request_id] for request_id in request_ids])


def test_one_row_may_always_run():
    model = tiny_model()
    engine = TorchEngine(model, max_bytes=0)
    seen = observed(engine)
    check_exact(model, growing_requests(), engine.generate(growing_requests()))
    assert {running for running, _ in seen} == {1}


def check_within(engine: TorchEngine, *calls: Sequence[Request]) -> None:
    seen = observed(engine)
    for requests in calls:
        engine.generate(requests)
    assert max(running for running, _ in seen) > 1
    assert max(held for running, held in seen if running > 1) <= engine._scheduler.max_bytes


SHORT = [Request(ids(20, seed=seed), 3 + seed % 5, seed=seed) for seed in range(40)]
LONG = [Request(ids(7 * CAPACITY_STEP, seed=seed), 3, seed=seed) for seed in range(2)]


@pytest.mark.parametrize("rows", [2, 3, 16, 20, 32])
def test_rows_stay_within_the_memory(rows):
    check_within(engine_with_memory(tiny_model(), rows), SHORT, SHORT[::-1])


@pytest.mark.parametrize("rows", [2, 3, 16, 20, 32])
@pytest.mark.parametrize("requests", [growing_requests(), [*growing_requests(), *SHORT]])
def test_growing_rows_stay_within_the_memory(rows, requests):
    check_within(engine_with_memory(tiny_model(), rows), requests, requests[::-1])


def test_short_rows_after_long_ones_stay_within_the_memory():
    check_within(engine_with_memory(tiny_model(), 16), LONG, SHORT)


def test_a_long_prompt_beside_a_conversation_that_goes_on_stays_within_the_memory():
    engine = engine_with_memory(tiny_model(), 16)
    requests = [Request(ids(100, seed=seed), 3, seed=seed) for seed in range(2)]
    completions = engine.generate(requests)
    goes_on = [
        Request(r.prompt + tuple(c.token_ids) + ids(12, seed=7), 3) for r, c in zip(requests, completions, strict=True)
    ]
    check_within(engine, [*goes_on, *[Request(ids(CAPACITY_STEP - 10, seed=seed), 3) for seed in (8, 9)]])


def test_a_slot_that_loses_capacity_it_needs_is_emptied():
    cache = KVCache(2, 2, 16, torch.float32, torch.device("cpu"))
    cache.reserve(3, 2 * CAPACITY_STEP)
    cache.ids = [[1] * (CAPACITY_STEP + 1), [2] * CAPACITY_STEP, [3]]
    cache.shrink(2, 100)
    assert cache.ids == [[], [2] * CAPACITY_STEP]
    assert {tuple(tensor.shape) for tensor in (*cache.own.keys, *cache.own.values)} == {(2, 2, CAPACITY_STEP, 16)}


def test_the_default_is_a_share_of_what_is_free(monkeypatch):
    monkeypatch.setattr("lmgym.engines.torch.engine.free_bytes", lambda device: 1_000_003)
    assert TorchEngine(tiny_model())._scheduler.max_bytes == int(MEMORY_SHARE * 1_000_003)
    assert TorchEngine(tiny_model(), max_bytes=5)._scheduler.max_bytes == 5


MEMINFO = "MemTotal: 900 kB\nMemFree: 20 kB\nMemAvailable:     300 kB\n"


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, memory.UNKNOWN),
        ({"/proc/meminfo": MEMINFO}, 300 * 1024),
        ({"/proc/meminfo": "MemTotal: 900 kB\n"}, memory.UNKNOWN),
        ({"/proc/meminfo": MEMINFO, "max": "max\n", "current": "5\n"}, 300 * 1024),
        ({"/proc/meminfo": MEMINFO, "max": "5000\n", "current": "2000\n"}, 3000),
        ({"/proc/meminfo": MEMINFO, "max": "5000\n", "current": "7000\n"}, 0),
        ({"max": "5000\n", "current": "2000\n"}, 3000),
        ({"max": "5000\n", "current": "2000\n", "stat": "anon 9\ninactive_file 1500\nactive_file 70\n"}, 4500),
        ({"/proc/meminfo": MEMINFO, "max": "9000000\n", "current": "0\n"}, 300 * 1024),
    ],
)
def test_what_is_free_is_the_less_of_system_and_container(monkeypatch, files, free):
    def read_text(path: Path) -> str:
        name = str(path).removeprefix("/sys/fs/cgroup/memory.")
        if name not in files:
            raise FileNotFoundError(path)
        return files[name]

    monkeypatch.setattr(memory.Path, "read_text", read_text)
    assert memory.free_bytes(torch.device("cpu")) == free


def test_the_shared_prefix_is_stored_once_beside_the_slots():
    engine = engine_with_memory(tiny_model(), 16)
    check_within(engine, [Request(PREFIX * 10 + ids(20, seed=seed), 3, seed=seed) for seed in range(16)])
    assert engine._cache.capacity == CAPACITY_STEP
