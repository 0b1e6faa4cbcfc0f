"""Requests come, go on, end and are forgotten while others are being written, and none of it changes a word."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import tiny_model
from engine_checks import (
    MULTIPLES_OF_THREE,
    PREFIX,
    check_against_transformers,
    check_exact,
    computed_tokens,
    converse_out_of_step,
    ids,
    moved,
    ragged_requests,
)
from hand_made import plain_network, plain_scores, ragged_rows

from lmgym.engines.engine import Completion, Engine, Request
from lmgym.engines.plain_engine import PlainEngine
from lmgym.engines.row import Row
from lmgym.engines.torch.engine import TorchEngine
from lmgym.models.distribution import Distribution

ENGINES = [TorchEngine, PlainEngine]


def drain(engine: Engine, request_ids: Collection[int]) -> dict[int, Completion]:
    """All that is still to come, in the order it came."""
    done: dict[int, Completion] = {}
    while left := [request_id for request_id in request_ids if request_id not in done]:
        done |= engine.wait(left)
    return done


def check_all(model, asked: dict[int, Request], done: dict[int, Completion]) -> None:
    """Every request_id got what its own request asks for."""
    assert asked.keys() == done.keys()
    check_exact(model, list(asked.values()), [done[request_id] for request_id in asked])


@pytest.mark.parametrize("kind", ENGINES)
def test_whoever_is_done_first_is_given_first_and_the_others_go_on(kind):
    model = tiny_model()
    engine = kind(model)
    requests = [
        Request(PREFIX + ids(20, seed=place), budget, seed=place) for place, budget in enumerate((9, 2, 5, 5, 1))
    ]
    request_ids = engine.submit(requests)
    given = []
    done: dict[int, Completion] = {}
    while len(done) < len(request_ids):
        some = engine.wait([request_id for request_id in request_ids if request_id not in done])
        given.append([request_ids.index(request_id) for request_id in some])
        done |= some
    assert given == [[4], [1], [2, 3], [0]]
    check_all(model, dict(zip(request_ids, requests, strict=True)), done)


@pytest.mark.parametrize("kind", ENGINES)
def test_what_is_done_waits_until_it_is_asked_for_and_is_given_once(kind):
    engine = kind(tiny_model())
    short, long = engine.submit([Request(PREFIX, 2), Request(PREFIX, 7)])
    assert list(engine.wait([long])) == [long]
    assert list(engine.wait([short, long])) == [short]
    assert engine.wait([short, long]) == engine.wait([]) == {}


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("max_running", [1, 3, 128])
def test_requests_that_come_while_others_are_being_written(architecture, max_running):
    model = tiny_model(architecture)
    engine = TorchEngine(model, max_running)
    requests = [replace(r, max_tokens=2 + 3 * (r.seed % 4)) for r in ragged_requests(10)]
    requests += [replace(r, seed=20 + r.seed) for r in requests[:4]]  # as some that are there already, or are gone
    asked: dict[int, Request] = {}
    done: dict[int, Completion] = {}
    while requests or len(done) < len(asked):
        coming, requests = requests[:2], requests[2:]
        asked |= dict(zip(engine.submit(coming), coming, strict=True))
        done |= engine.wait([request_id for request_id in asked if request_id not in done])
    check_all(model, asked, done)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("max_running", [2, 4, 128])
def test_conversations_out_of_step_with_each_other(architecture, max_running):
    model = tiny_model(architecture)
    said = converse_out_of_step(TorchEngine(model, max_running))
    assert len({(conversation, turn) for conversation, turn, *_ in said}) == 24
    turns = [turn for _, turn, *_ in said]
    assert turns != sorted(turns), "some were a turn ahead"
    check_exact(model, *zip(*(each[2:] for each in said), strict=True))


def test_going_on_beside_others_computes_only_what_is_new(monkeypatch):
    model = tiny_model()
    engine = TorchEngine(model)
    computed = computed_tokens(engine)
    requests = [Request(PREFIX + ids(20, seed=seed), 3 + 9 * seed, seed=seed) for seed in range(2)]
    short, long = engine.submit(requests)
    first = engine.wait([short, long])[short]
    goes_on = replace(requests[0], prompt=requests[0].prompt + tuple(first.token_ids) + ids(12, seed=9))
    done = drain(engine, [long, *engine.submit([goes_on])])
    written = [first, *done.values()]
    assert sum(computed) == len(PREFIX) + 2 * 20 + (1 + 12) + sum(len(c.token_ids) - 1 for c in written)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("forgotten", [[0], [4], [1, 5], [0, 1, 2, 3], [0, 1, 2, 3, 4]])
def test_the_forgotten_never_come_back_and_change_nobody_else(kind, forgotten):
    """Of six, two run and four wait when some are forgotten."""
    model = tiny_model()
    engine = kind(model, 2)
    requests = [Request(PREFIX + ids(20, seed=seed), 6 + seed, seed=seed) for seed in range(6)]
    request_ids = engine.submit([*requests, Request(PREFIX + ids(3, seed=9), 1)])
    with torch.inference_mode():
        engine._advance()
        engine._advance()
    engine.cancel([request_ids[place] for place in forgotten])
    assert engine.wait([request_ids[place] for place in forgotten]) == {}
    left = {request_id: requests[place] for place, request_id in enumerate(request_ids[:6]) if place not in forgotten}
    done = drain(engine, [*left, request_ids[6]])
    check_all(model, left, {request_id: done[request_id] for request_id in left})
    assert not engine._rows
    assert not engine._waiting


@pytest.mark.parametrize("passes", range(1, 9))
@pytest.mark.parametrize("forgotten", [0, 1, 3])
def test_one_of_a_group_is_forgotten_and_the_others_go_on(passes, forgotten):
    """Whether they still read their prompt, have just begun to differ, or two of them say the same for a while."""
    model = tiny_model()
    engine = TorchEngine(model)
    requests = [Request(PREFIX + ids(6, seed=1), 6, seed=seed // 2) for seed in range(4)]
    asked = dict(zip(engine.submit([*requests, Request(PREFIX + ids(9, seed=2), 9)]), requests, strict=False))
    with torch.inference_mode():
        for _ in range(passes):
            engine._advance()
    row = engine._rows[forgotten]
    engine.cancel([forgotten])
    del asked[forgotten]
    check_all(model, asked, drain(engine, asked))
    assert row.done
    assert len(row.completion.token_ids) < 6, "nothing more was written for it"


def test_requests_with_the_same_tokens_are_computed_as_one_until_they_differ():
    model = tiny_model()
    engine = TorchEngine(model)
    requests = [Request(PREFIX + ids(20, seed=1), 8, seed=seed // 2) for seed in range(6)]
    request_ids = engine.submit(requests)
    slots = []
    while not engine._rows[request_ids[0]].done:
        with torch.inference_mode():
            engine._advance()
        slots.append(len(engine._scheduler.running))
    assert (slots[0], slots[-1]) == (1, 3), "those of the same seed never differ"
    check_all(model, dict(zip(request_ids, requests, strict=True)), drain(engine, request_ids))


def test_nobody_waits_for_the_forgotten():
    engine = TorchEngine(tiny_model(), max_running=1)
    endless, short = engine.submit([Request(PREFIX + ids(20, seed=1), 1000), Request(PREFIX + ids(20, seed=2), 2)])
    with torch.inference_mode():
        engine._advance()
    engine.cancel([endless, 77])
    passes, real = [], engine._advance
    engine._advance = lambda: passes.append(1) or real()
    assert list(engine.wait([endless, short])) == [short]
    assert len(passes) == 2


@pytest.mark.parametrize("kind", ENGINES)
def test_requests_of_two_callers_do_not_mix(kind):
    model = tiny_model()
    engine = kind(model, 4)
    mine, yours = ragged_requests(4, max_tokens=3), ragged_requests(4, prefix=PREFIX, max_tokens=8)
    my_ids, your_ids = engine.submit(mine), engine.submit(yours)
    assert not set(my_ids) & set(your_ids)
    others = ragged_requests(3, prefix=PREFIX[:30])
    between = engine.generate(others)
    check_exact(model, others, between)
    check_all(model, dict(zip(your_ids, yours, strict=True)), drain(engine, your_ids))
    check_all(model, dict(zip(my_ids, mine, strict=True)), drain(engine, my_ids))


def test_a_request_without_the_shared_prefix_waits_for_those_that_have_it_and_is_right():
    model = tiny_model()
    engine = TorchEngine(model)
    asked = dict(enumerate(ragged_requests(3, max_tokens=5)))
    assert engine.submit(list(asked.values())) == [0, 1, 2]
    with torch.inference_mode():
        engine._advance()
    others = [
        Request(ids(60, seed=300), 1),
        Request(PREFIX, 1),
        Request(PREFIX[:25] + ids(40, seed=2), 2, seed=1),
    ]
    joining = Request(PREFIX + ids(9, seed=5), 3, seed=2)
    asked |= dict(zip(engine.submit([*others, joining]), [*others, joining], strict=True))
    done = drain(engine, asked)
    order = list(done)
    assert set(order[:4]) == {0, 1, 2, 6}
    check_all(model, asked, done)


@pytest.mark.parametrize("copied", [False, True])
def test_new_weights_in_the_middle_write_what_comes_after_them(copied):
    model = tiny_model()
    engine = TorchEngine(model, max_running=4)
    if copied:  # as for bfloat16, which must not be tried on every CPU
        engine._decoder = model.inference_copy()
    requests = [replace(r, max_tokens=3 if r.seed == 3 else 9) for r in ragged_requests(7)]
    request_ids = engine.submit(requests)
    done = engine.wait(request_ids)
    before = {
        request_id: len(engine._rows[request_id].completion.token_ids)
        for request_id in request_ids
        if request_id not in done
    }
    old = plain_network(model)
    moved(model)
    new = plain_network(model)
    done |= drain(engine, before)
    assert {0} < set(before.values()), "some had written and some were waiting"
    for request_id, count in before.items():
        request, written = requests[request_ids.index(request_id)], done[request_id]
        assert len(written.token_ids) == request.max_tokens
        tokens, mask, _ = ragged_rows(
            [(request.prompt + tuple(written.token_ids), [0] * len(request.prompt) + [1] * len(written.token_ids))]
        )
        with torch.no_grad():
            by_old, by_new = (plain_scores(network, tokens, mask, 1.0)[0][0] for network in (old, new))
        exact = torch.cat([by_old[: len(request.prompt) + count], by_new[len(request.prompt) + count :]])
        assert written.logprobs == pytest.approx(exact[len(request.prompt) :].tolist(), abs=1e-4)
        assert (by_old - by_new).abs().max() > 0.1


@pytest.mark.parametrize("kind", ENGINES)
def test_the_version_is_that_of_the_first_token(kind):
    model = tiny_model()
    engine = kind(model, 1)
    begun, waiting = engine.submit([Request(PREFIX + ids(20, seed=seed), 3) for seed in (1, 2)])
    with torch.inference_mode():
        engine._advance()
    moved(model)
    done = drain(engine, [begun, waiting])
    assert (done[begun].versions[0], done[waiting].versions[0]) == (0, 1)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("again", ["the same requests", "something else"])
def test_an_engine_that_was_interrupted_can_be_used_again(monkeypatch, kind, again):
    append = Row.append

    def interrupted(row: Row, *sampled) -> None:
        append(row, *sampled)
        if len(row.completion.token_ids) == 2 and interruptions:
            raise interruptions.pop()

    model = tiny_model()
    engine, interruptions = kind(model), [KeyboardInterrupt()]
    monkeypatch.setattr(Row, "append", interrupted)
    request_ids = engine.submit(ragged_requests(4))
    with pytest.raises(KeyboardInterrupt):
        engine.wait(request_ids)
    if again == "the same requests":
        done = drain(engine, request_ids)
        assert done.keys() == set(request_ids)
        check_against_transformers(model, ragged_requests(4), [done[request_id] for request_id in request_ids])
    else:
        check_exact(model, ragged_requests(4), engine.generate(ragged_requests(4)))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_asked_whenever(seed):
    """Random calls of one engine: requests new, alike, of other prefixes and going on, some of which are cancelled."""
    random = np.random.default_rng(seed)
    model = tiny_model(("llama", "qwen2", "qwen3")[seed % 3])
    engine: Any = TorchEngine(model, max_running=int(random.choice([1, 2, 3, 5, 128])))
    if random.random() < 0.5:
        engine = TorchEngine(model, max_bytes=engine._cache.bytes_per_token * 128 * int(random.integers(1, 6)))
    prefixes = [PREFIX, PREFIX, PREFIX, PREFIX[:20], ids(30, seed=300), ()]
    asked: dict[int, Request] = {}
    done: dict[int, Completion] = {}

    def ask(prompt: tuple[int, ...]) -> None:
        chosen = Distribution(float(random.choice([0.0, 0.7, 1.0])), int(random.choice([0, 20])))
        stop_ids = MULTIPLES_OF_THREE if random.random() < 0.3 else frozenset()
        seed, draws = int(random.integers(10**6)), int(random.choice([0, 0, 3]))
        request = Request(prompt, int(random.integers(1, 12)), chosen, seed, draws, stop_ids)
        asked[engine.submit([request])[0]] = request

    for _ in range(40):
        left = [request_id for request_id in asked if request_id not in done]
        choice = random.random()
        if choice < 0.35 or not left:
            own = ids(int(random.choice([1, 5, 12, 40, 130])), seed=int(random.integers(4)))
            prompt = prefixes[random.integers(len(prefixes))] + own
            for _ in range(int(random.choice([1, 1, 3]))):
                ask(prompt)
        elif choice < 0.6 and done:
            request_id = int(random.choice(list(done)))
            reply = ids(int(random.choice([0, 1, 10, 20])), seed=int(random.integers(4)))
            ask(asked[request_id].prompt + tuple(done[request_id].token_ids) + reply)
        elif choice < 0.68:
            request_id = int(random.choice(left))
            engine.cancel([request_id])
            del asked[request_id]
        else:
            done |= engine.wait(random.permutation(left)[: random.integers(1, len(left) + 1)].tolist())
    done |= drain(engine, [request_id for request_id in asked if request_id not in done])
    check_all(model, asked, done)
    assert not engine._rows
