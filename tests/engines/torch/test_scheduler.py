"""The scheduler and the KV cache without a network: their invariants, whatever is asked whenever."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_checks import ids
from hypothesis import given, settings
from hypothesis import strategies as st

from lmgym.engines.engine import Request
from lmgym.engines.row import Row
from lmgym.engines.torch.kv_cache import CAPACITY_STEP, KVCache
from lmgym.engines.torch.scheduler import Scheduler

PROMPT = ids(300, seed=0)
EOS = {3}


class CodedCache(KVCache):
    """A cache of single numbers: the key of a token is the code of all ids up to it."""

    def __init__(self) -> None:
        super().__init__(1, 1, 1, torch.float32, torch.device("cpu"))
        self.codes: dict[tuple[int, ...], int] = {}

    def compute(self, slot: int, token: int) -> None:
        """What a forward pass does: writes the key of a slot's next token."""
        place = self.own_length(slot)
        assert place < self.capacity
        self.ids[slot].append(token)
        self.own.keys[0][slot, 0, place] = self.code(self.ids[slot])

    def code(self, ids: list[int]) -> int:
        return self.codes.setdefault(tuple(ids), len(self.codes) + 1)

    def held(self, slot: int) -> list[int]:
        """The codes that a slot holds, those of its shared prompt first."""
        prompt, own = self.prompts[slot], self.own.keys[0][slot, 0, : self.own_length(slot), 0]
        shared = [] if prompt is None else self.shared.keys[0][prompt, 0, : self.prompt_lengths[prompt], 0].tolist()
        return [int(code) for code in [*shared, *own.tolist()]]


class Calls:
    """Calls of one scheduler, as an engine makes them, with samples from three tokens in place of a network."""

    def __init__(self, max_running: int, max_tokens: int) -> None:
        self.cache = CodedCache()
        self.scheduler = Scheduler(self.cache, max_running, max_tokens * self.cache.bytes_per_token)
        self.waiting: list[Row] = []
        self.submitted: list[Row] = []

    def submit(self, prompt: tuple[int, ...], seed: int) -> None:
        row = Row.start(len(self.submitted), Request(prompt, 1 + seed % 7, seed=seed % 3))
        self.submitted.append(row)
        self.waiting.append(row)

    def cancel(self, row: Row) -> None:
        row.done = True
        self.waiting = [other for other in self.waiting if not other.done]

    def reset(self, prefix: list[int]) -> None:
        self.waiting = self.scheduler.reset(prefix) + self.waiting

    def advance(self) -> None:
        """One pass: schedules, computes one token of every slot, and samples behind a slot's last one."""
        scheduler, cache = self.scheduler, self.cache
        self.waiting = scheduler.schedule(self.waiting)
        self.check()
        if scheduler.running:
            running = range(len(scheduler.running))
            scheduler.reserve(len(running), max(map(cache.own_length, running)) + 1)
        self.check()
        for slot, rows in enumerate(scheduler.running):
            uncomputed = scheduler.uncomputed(slot)
            cache.compute(slot, uncomputed[0])
            for row in rows if len(uncomputed) == 1 else ():
                row.append(1 + int(3 * row.uniforms.random()), 0.0, EOS, 0)

    def check(self) -> None:
        scheduler, cache = self.scheduler, self.cache
        served = [*self.waiting, *(row for rows in scheduler.running for row in rows)]
        alive = [row.request_id for row in self.submitted if not row.done]
        assert sorted(row.request_id for row in served) == alive, "no row is lost or duplicated"
        prefix = len(scheduler.shared_prefix)
        for slot, rows in enumerate(scheduler.running):
            own, held = rows[0].tokens[prefix:], cache.ids[slot]
            assert rows[0].tokens[:prefix] == scheduler.shared_prefix
            assert all(row.tokens == rows[0].tokens for row in rows)
            assert len(held) < len(own)
            assert held == own[: len(held)], "a slot holds a prefix of its rows"
        for slot, held in enumerate(cache.ids):
            assert cache.held(slot) == [cache.code(held[: end + 1]) for end in range(len(held))]
        assert len(scheduler.running) <= scheduler.limit(scheduler.rows) <= scheduler.max_running
        assert bool(scheduler.running) == any(map(scheduler.has_shared_prefix, served)), "some row always runs"
        if len(scheduler.running) > 1:
            reserved = cache.own.rows * cache.capacity + cache.shared_tokens
            assert reserved * cache.bytes_per_token <= scheduler.max_bytes


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    max_running=st.integers(1, 6),
    steps=st.integers(1, 8),
)
def test_invariants_hold_whatever_is_asked_whenever(seed, max_running, steps):
    random = np.random.default_rng(seed)
    calls = Calls(max_running, steps * CAPACITY_STEP)
    for _ in range(40):
        choice = random.random()
        alive = [row for row in calls.submitted if not row.done]
        if choice < 0.2:
            prompt = PROMPT[: random.choice([1, 5, 20, 20, 100, 120, 127, 250])] + ids(int(random.integers(3)), seed=1)
            for _ in range(random.choice([1, 1, 4])):
                calls.submit(prompt, int(random.integers(100)))
        elif choice < 0.4 and len(alive) < len(calls.submitted):
            finished = [row for row in calls.submitted if row.done]
            row = finished[random.integers(len(finished))]
            calls.submit((*row.tokens, *ids(int(random.integers(4)), seed=2)), int(random.integers(100)))
        elif choice < 0.45 and alive:
            calls.cancel(alive[random.integers(len(alive))])
        elif choice < 0.48:
            calls.reset(list(PROMPT[: random.choice([0, 3, 20])]))
        else:
            calls.advance()
    calls.reset([])
    for _ in range(5000):
        if all(row.done for row in calls.submitted):
            break
        calls.advance()
    assert all(row.done for row in calls.submitted), "every row is served in the end"


@pytest.mark.parametrize("reply", [(), (7, 8)])
def test_a_row_that_continues_a_finished_one_keeps_its_slot(reply):
    calls = Calls(4, 100 * CAPACITY_STEP)
    for seed in range(3):
        calls.submit((*PROMPT[:20], seed), seed=6)
    while not calls.submitted[1].done:
        calls.advance()
    finished = calls.submitted[1]
    slots = [rows[0] for rows in calls.scheduler.running]
    held = calls.cache.held(slots.index(finished))
    calls.submit((*finished.tokens, *reply), seed=6)
    calls.waiting = calls.scheduler.schedule(calls.waiting)
    place = [rows[0] for rows in calls.scheduler.running].index(calls.submitted[-1])
    assert calls.cache.held(place) == held, "nothing of it is computed again"
    assert calls.scheduler.uncomputed(place) == [finished.tokens[-1], *reply]


def test_a_group_shares_the_keys_of_its_prompt():
    calls = Calls(8, 100 * CAPACITY_STEP)
    for seed in range(4, 13):
        calls.submit(PROMPT, seed)
    while len(calls.scheduler.running) < 2:
        calls.advance()
    cache, running = calls.cache, len(calls.scheduler.running)
    assert set(cache.prompts[:running]) == {0}
    assert len(cache.prompt_lengths) == 1
    assert cache.prompt_lengths[0] >= len(PROMPT)
    assert cache.capacity == CAPACITY_STEP, "slots hold only what follows the prompt"
