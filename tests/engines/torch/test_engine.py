"""The fast engine says what the plain one says, token for token, whatever it keeps, shares or packs together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from conftest import tiny_model, tiny_network, tiny_tokenizer
from engine_checks import (
    FORCED,
    MULTIPLES_OF_THREE,
    PREFIX,
    check_against_transformers,
    check_same,
    check_shape,
    computed_tokens,
    generate_with_tool,
    ids,
    moved,
    ragged_requests,
)
from hand_made import shake_adapter

from lmgym.engines.engine import Completion, Engine, Request
from lmgym.engines.plain_engine import PlainEngine
from lmgym.engines.torch.engine import MIN_PREFILL_TOKENS as LEAST
from lmgym.engines.torch.engine import TorchEngine
from lmgym.models.distribution import Distribution
from lmgym.models.language_model import LanguageModel
from lmgym.models.loading import wrap_network
from lmgym.models.lora import LoraSettings, add_lora

SHARING = ["llama", "qwen2", "qwen3"]


def compare(model: LanguageModel, requests: Sequence[Request], max_running: int = 128) -> list[Completion]:
    fast = TorchEngine(model, max_running).generate(requests)
    check_same(requests, fast, PlainEngine(model).generate(requests))
    return fast


@pytest.mark.parametrize("architecture", SHARING)
def test_ragged_prompts_with_a_shared_prefix(architecture):
    model = tiny_model(architecture)
    requests = ragged_requests()
    check_against_transformers(model, requests, compare(model, requests))


@pytest.mark.parametrize("architecture", SHARING)
def test_groups_of_identical_prompts_among_others(architecture):
    prompts = [PREFIX + ids(20, seed=1)] * 4 + [PREFIX + ids(5, seed=2)] + [PREFIX + ids(20, seed=1)] * 2
    requests = [Request(prompt, max_tokens=6, seed=seed) for seed, prompt in enumerate(prompts)]
    completions = compare(tiny_model(architecture), requests)
    assert len({tuple(written.token_ids) for written in completions}) > 3, "each seed draws its own way"


@pytest.mark.parametrize("requests", [ragged_requests(5, prefix=()), ragged_requests(1), [Request((5,), 4)]])
def test_prompts_without_a_common_beginning_and_single_prompts(requests):
    compare(tiny_model(), requests)


def test_a_prompt_that_is_the_whole_of_another_ones_beginning():
    long = ids(60, seed=3)
    compare(tiny_model(), [Request(long[:n], max_tokens=5, seed=n) for n in (60, 30, 31, 60, 59, 30)])


@pytest.mark.parametrize("max_running", [1, 2, 3])
def test_more_requests_than_rows(max_running):
    requests = [replace(r, max_tokens=2 + r.seed % 5) for r in ragged_requests(10)]
    compare(tiny_model(), requests, max_running)


def test_prefilling_in_several_passes(monkeypatch):
    monkeypatch.setattr("lmgym.engines.torch.engine.PREFILL_TOKENS", 20)
    compare(tiny_model(), ragged_requests(10))


def converse(engine: Engine, turns: int = 4) -> list[list[Completion]]:
    """Conversations of different lengths: each prompt is the last one, what was written, and perhaps a reply."""
    prompts = {seed: PREFIX + ids(3 + seed, seed=seed // 2) for seed in range(6)}
    said = []
    for turn in range(turns):
        requests = [
            Request(prompt, 3 + (seed + turn) % 4, seed=10 * turn + seed, stop_ids=MULTIPLES_OF_THREE)
            for seed, prompt in prompts.items()
        ]
        parts = generate_with_tool(engine, requests)
        said.append([completion for each in parts for _, completion in each])
        for seed, each in zip(list(prompts), parts, strict=True):
            check_shape(*zip(*each, strict=True))
            reply = ids((seed + turn) % 3, seed=1000 + seed)  # at times none
            request, written = each[-1]
            prompts[seed] = request.prompt + tuple(written.token_ids) + reply
        prompts.pop(turn)  # one conversation ends
        prompts = dict(sorted(prompts.items(), key=lambda item: (item[0] * 7 + turn) % 5))
    return said


@pytest.mark.parametrize("architecture", SHARING)
@pytest.mark.parametrize("max_running", [3, 128])
def test_conversations_of_several_turns(architecture, max_running):
    model = tiny_model(architecture)
    fast, plain = converse(TorchEngine(model, max_running)), converse(PlainEngine(model))
    assert any(written.finish == "stop" for turn in fast for written in turn), "a tool was asked"
    for one, other in zip(fast, plain, strict=True):
        for mine, exact in zip(one, other, strict=True):
            assert mine.token_ids == exact.token_ids
            assert mine.logprobs == pytest.approx(exact.logprobs, abs=1e-4)


@pytest.mark.parametrize("architecture", SHARING)
@pytest.mark.parametrize("max_running", [2, 128])
def test_requests_that_go_on_behind_forced_tokens(architecture, max_running):
    model = tiny_model(architecture)
    requests = ragged_requests(6, max_tokens=14, stop_ids=MULTIPLES_OF_THREE)
    fast, plain = (generate_with_tool(e, requests) for e in (TorchEngine(model, max_running), PlainEngine(model)))
    assert any(len(parts) > 2 for parts in fast)
    for one, other in zip(fast, plain, strict=True):
        asked, completions = zip(*one, strict=True)
        check_same(asked, completions, [written for _, written in other])
        check_against_transformers(model, asked, completions)
        for request, written in one[1:]:
            assert request.prompt[-3:] == FORCED
            assert not set(written.token_ids[:-1]) & MULTIPLES_OF_THREE


@pytest.mark.parametrize("kind", [TorchEngine, PlainEngine])
@pytest.mark.parametrize("stop_ids", [MULTIPLES_OF_THREE, frozenset(range(104))])
def test_several_requests_sample_what_one_request_would_have_sampled(kind, stop_ids):
    model = tiny_model()
    requests = ragged_requests(6, max_tokens=14)
    whole = kind(model, 4).generate(requests)
    parts = generate_with_tool(kind(model, 4), [replace(r, stop_ids=stop_ids) for r in requests], forced=())
    assert max(map(len, parts)) > 3
    for one, several in zip(whole, parts, strict=True):
        assert one.token_ids == [token for _, written in several for token in written.token_ids]
        assert one.logprobs == pytest.approx([x for _, written in several for x in written.logprobs], abs=1e-5)


def test_forced_tokens_take_no_uniform_number():
    """With and without a forced token the second draw uses the same random number: seen at a flat distribution."""
    model = tiny_model()
    with torch.no_grad():
        model.network.get_output_embeddings().weight.zero_()
    request = Request(ids(5, seed=1), max_tokens=6, seed=3)
    free = TorchEngine(model).generate([request])[0]
    prompt = (*request.prompt, free.token_ids[0], 50)
    forced = TorchEngine(model).generate([replace(request, prompt=prompt, max_tokens=5, draws=1)])[0]
    assert forced.token_ids == free.token_ids[1:]
    assert len(set(free.token_ids)) > 1


def test_a_request_that_goes_on_takes_its_slot_back_in_place(monkeypatch):
    """However often the tool is asked, nothing is computed again, and no slot is copied or moved."""
    model = tiny_model()
    engine = TorchEngine(model)
    computed = computed_tokens(engine)
    moves = []
    for name in ("copy", "swap"):
        monkeypatch.setattr(engine._cache, name, lambda *slots, name=name: moves.append((name, slots)))
    requests = [
        Request(PREFIX + ids(20, seed=seed), 10, seed=seed, stop_ids=frozenset(range(104))) for seed in range(5)
    ]
    for forced in ((), (7,), FORCED):
        engine.release_cache()
        computed.clear()
        parts = generate_with_tool(engine, requests, forced)
        read = [len(each[-1][0].prompt) - len(PREFIX) + len(each[-1][1].token_ids) - 1 for each in parts]
        assert all(len(each) == -(-10 // (1 + len(forced))) for each in parts), "one request for each sampled token"
        assert sum(computed) == len(PREFIX) + sum(read)
        assert not moves


def test_the_budget_cuts_and_says_so():
    completions = compare(tiny_model(), [replace(r, max_tokens=1 + r.seed) for r in ragged_requests(5)])
    assert [(len(c.token_ids), c.finish) for c in completions] == [(n, "length") for n in (1, 2, 3, 4, 5)]


def test_an_end_token_and_a_stop_id_end_a_completion_at_once():
    model = tiny_model()
    ends = list(range(20, 60))
    model.network.generation_config.eos_token_id = ends
    stops = frozenset(range(50, 90))  # an end token that is a stop id too is an end token
    requests = ragged_requests(10, max_tokens=20)
    requests[1::2] = [replace(r, stop_ids=stops) for r in requests[1::2]]
    completions = compare(model, requests, max_running=4)
    for request, written in zip(requests, completions, strict=True):
        last = written.token_ids[-1]
        assert written.finish == ("eos" if last in ends else "stop")
        assert last in ends or last in request.stop_ids
        assert not set(written.token_ids[:-1]) & {*ends, *request.stop_ids}
    assert {written.finish for written in completions} == {"eos", "stop"}


def test_greedy_and_sampled_requests_in_one_call():
    model = tiny_model()
    requests = [replace(r, distribution=Distribution((0.0, 0.7, 1.0, 1.6)[r.seed % 4])) for r in ragged_requests(8)]
    completions = compare(model, requests)
    check_against_transformers(model, requests, completions)
    # Greedy means that no seed matters.
    again = TorchEngine(model).generate([replace(r, seed=r.seed + 77) for r in requests])
    same = [one.token_ids == other.token_ids for one, other in zip(completions, again, strict=True)]
    assert same == [request.distribution.temperature == 0 for request in requests]


def test_the_batch_around_a_request_does_not_change_it():
    model = tiny_model()
    requests = ragged_requests(6) + ragged_requests(3, prefix=(), max_tokens=9)
    together = TorchEngine(model, max_running=4).generate(requests)
    for request, written in zip(requests, together, strict=True):
        check_same([request], TorchEngine(model).generate([request]), [written])


def test_a_large_vocabulary_is_drawn_from_alike_however_rows_are_batched():
    model = tiny_model(vocabulary=49_152)
    flatter = Distribution(temperature=3.0)  # so that every draw is from a long tail
    requests = [replace(r, distribution=flatter, max_tokens=10) for r in ragged_requests(10) + ragged_requests(10, ())]
    requests = [replace(request, seed=seed) for seed, request in enumerate(requests)]
    few, some, all_at_once = (TorchEngine(model, max_running).generate(requests) for max_running in (1, 3, 256))
    written = [token for completion in few for token in completion.token_ids]
    assert len(set(written)) > 150
    assert [c.token_ids for c in few] == [c.token_ids for c in some] == [c.token_ids for c in all_at_once]


def test_one_engine_through_changing_prefixes():
    model = tiny_model()
    engine, plain = TorchEngine(model, max_running=4), PlainEngine(model)
    other = ids(50, seed=200)
    calls = [
        ragged_requests(5),
        ragged_requests(5, prefix=other),
        ragged_requests(5),
        ragged_requests(1),
        ragged_requests(3, prefix=PREFIX[:20]),
        ragged_requests(3, prefix=()),
        ragged_requests(5, prefix=PREFIX + other),
        ragged_requests(5),
    ]
    for requests in calls:
        check_same(requests, engine.generate(requests), plain.generate(requests))


def test_what_was_computed_behind_one_prefix_is_not_reused_for_the_same_ids_behind_another():
    model = tiny_model()
    engine, plain = TorchEngine(model), PlainEngine(model)
    own = [ids(8, seed=1), ids(8, seed=2)]
    for turn, prefix in enumerate([PREFIX, ids(40, seed=200), (), PREFIX[:20]]):
        # One token is sampled and none decoded, so that the slots hold exactly what the next prompts go on from.
        requests = [Request(prefix + part + (50,) * turn, max_tokens=1, seed=turn) for part in own]
        check_same(requests, engine.generate(requests), plain.generate(requests))


def test_a_prompt_that_ends_where_the_shared_prefix_of_the_call_before_ended():
    model = tiny_model()
    engine, plain = TorchEngine(model), PlainEngine(model)
    for requests in (ragged_requests(4), [*ragged_requests(2), Request(PREFIX, max_tokens=3)]):
        check_same(requests, engine.generate(requests), plain.generate(requests))


@pytest.mark.parametrize("architecture", SHARING)
def test_new_weights_leave_nothing_of_the_old_ones(architecture):
    model = tiny_model(architecture)
    engine = TorchEngine(model, max_running=8)
    requests = ragged_requests(6)
    old = engine.generate(requests)
    goes_on = [
        replace(r, prompt=r.prompt + tuple(written.token_ids) + (11,)) for r, written in zip(requests, old, strict=True)
    ]
    moved(model)
    for asked in (requests, goes_on):
        check_same(asked, engine.generate(asked), PlainEngine(model).generate(asked))
    new = engine.generate(requests)
    assert [c.token_ids for c in new] != [c.token_ids for c in old]
    assert {version for c in new for version in c.versions} == {1}
    assert {version for c in old for version in c.versions} == {0}


def test_continuing_after_new_weights_without_asking_the_old_prompts_first():
    model = tiny_model()
    engine = TorchEngine(model)
    requests = ragged_requests(4)
    written = engine.generate(requests)
    goes_on = [replace(r, prompt=r.prompt + tuple(c.token_ids)) for r, c in zip(requests, written, strict=True)]
    moved(model)
    check_same(goes_on, engine.generate(goes_on), PlainEngine(model).generate(goes_on))


@pytest.mark.parametrize("copied", [False, True])
def test_an_adapter_and_a_inference_copy_are_followed(copied):
    network = add_lora(tiny_network(), LoraSettings(rank=4, alpha=8))
    model = wrap_network(network, tiny_tokenizer(), torch.device("cpu"), torch.float32, "tiny", has_lora=True)
    engine = TorchEngine(model)
    if copied:  # as for bfloat16, which must not be tried on every CPU
        engine._decoder = model.inference_copy()
    requests = ragged_requests()
    for seed in range(3):
        check_same(requests, engine.generate(requests), PlainEngine(model).generate(requests))
        shake_adapter(network, size=0.3, seed=seed)
        model.version += 1


def test_no_prompt_token_is_computed_twice(monkeypatch):
    model = tiny_model()
    engine = TorchEngine(model, max_running=16)
    computed = computed_tokens(engine)
    own = [ids(12, seed=1), ids(12, seed=2)]
    requests = [Request(PREFIX + own[seed % 2], max_tokens=5, seed=seed // 4) for seed in range(8)]
    read: set[tuple[int, ...]] = set()
    for reply in ((11, 12), ids(15, seed=3), ()):
        written = engine.generate(requests)
        said = [request.prompt + tuple(c.token_ids) for request, c in zip(requests, written, strict=True)]
        # All but the last token of each sequence was read, and what several begin with alike was read once.
        read |= {sequence[:end] for sequence in said for end in range(1, len(sequence))}
        assert sum(computed) == len(read)
        requests = [replace(r, prompt=sequence + reply) for r, sequence in zip(requests, said, strict=True)]


def test_continuations_come_before_other_waiting_requests(monkeypatch):
    model = tiny_model()
    engine = TorchEngine(model, max_running=4)
    computed = computed_tokens(engine)
    requests = [Request(PREFIX + ids(8, seed=seed), max_tokens=5, seed=seed) for seed in range(4)]
    written = engine.generate(requests)
    goes_on = [replace(r, prompt=r.prompt + tuple(c.token_ids)) for r, c in zip(requests, written, strict=True)]
    computed.clear()
    completions = engine.generate([Request(PREFIX + ids(9, seed=50), max_tokens=5), *goes_on])
    assert sum(computed) == 9 + 4 + sum(len(c.token_ids) - 1 for c in completions)


def test_nothing_asked_is_nothing_said():
    assert TorchEngine(tiny_model()).generate([]) == PlainEngine(tiny_model()).generate([]) == []


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_the_plain_engine_agrees_with_transformers(architecture):
    model = tiny_model(architecture)
    requests = ragged_requests(5, stop_ids=MULTIPLES_OF_THREE, max_tokens=8)
    completions = PlainEngine(model, max_running=2).generate(requests)
    check_shape(requests, completions)
    check_against_transformers(model, requests, completions)


@pytest.mark.parametrize("prefix", [(), PREFIX])
@pytest.mark.parametrize(("reply", "passes"), [(5, [1] * 6), (LEAST - 1, [1] * LEAST), (LEAST, [LEAST, 1])])
def test_a_conversation_that_goes_on_computes_only_what_is_new(prefix, reply, passes):
    engine = TorchEngine(tiny_model())
    computed = computed_tokens(engine)
    prompts = [prefix + ids(30, seed=1), prefix + ids(25, seed=2)]
    first = engine.generate([Request(prompt, 4, seed=3) for prompt in prompts])
    computed.clear()
    going_on = [
        prompt + tuple(written.token_ids) + ids(reply, seed=9) for prompt, written in zip(prompts, first, strict=True)
    ]
    engine.generate([Request(prompt, 1, seed=4) for prompt in going_on])
    assert computed == [2 * tokens for tokens in passes], (
        "the last sampled token and the reply: one per pass if they are few"
    )
