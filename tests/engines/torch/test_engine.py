"""The fast engine says what the plain one says, token for token, whatever it keeps, shares or packs together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from conftest import tiny_model, tiny_network, tiny_tokenizer
from engine_checks import (
    FORCED,
    TRUNK,
    check_against_transformers,
    check_same,
    check_shape,
    force_after_multiples_of_three,
    ids,
    moved,
    ragged_requests,
)
from hand_made import shake_adapter

from lmgym.engines.engine import GO_ON, STOP, Completion, Engine, Request, Verdict
from lmgym.engines.plain_engine import PlainEngine
from lmgym.engines.torch.engine import CATCH_UP, TorchEngine
from lmgym.models.distribution import Distribution
from lmgym.models.language_model import LanguageModel
from lmgym.models.loading import wrap_network
from lmgym.models.lora import LoraSettings, add_lora

SHARING = ["llama", "qwen2", "qwen3"]


def compare(model: LanguageModel, requests: Sequence[Request], max_rows: int = 128) -> list[Completion]:
    fast = TorchEngine(model, max_rows).generate(requests)
    check_same(requests, fast, PlainEngine(model).generate(requests))
    return fast


@pytest.mark.parametrize("architecture", SHARING)
def test_ragged_prompts_with_a_shared_trunk(architecture):
    model = tiny_model(architecture)
    requests = ragged_requests()
    check_against_transformers(model, requests, compare(model, requests))


@pytest.mark.parametrize("architecture", SHARING)
def test_groups_of_identical_prompts_among_others(architecture):
    prompts = [TRUNK + ids(20, seed=1)] * 4 + [TRUNK + ids(5, seed=2)] + [TRUNK + ids(20, seed=1)] * 2
    requests = [Request(prompt, max_tokens=6, seed=seed) for seed, prompt in enumerate(prompts)]
    completions = compare(tiny_model(architecture), requests)
    assert len({tuple(written.token_ids) for written in completions}) > 3, "each seed draws its own way"


@pytest.mark.parametrize("requests", [ragged_requests(5, trunk=()), ragged_requests(1), [Request((5,), 4)]])
def test_prompts_without_a_common_beginning_and_single_prompts(requests):
    compare(tiny_model(), requests)


def test_a_prompt_that_is_the_whole_of_another_ones_beginning():
    long = ids(60, seed=3)
    compare(tiny_model(), [Request(long[:n], max_tokens=5, seed=n) for n in (60, 30, 31, 60, 59, 30)])


@pytest.mark.parametrize("max_rows", [1, 2, 3])
def test_more_requests_than_rows(max_rows):
    requests = [replace(r, max_tokens=2 + r.seed % 5) for r in ragged_requests(10)]
    compare(tiny_model(), requests, max_rows)


def test_prefilling_in_several_passes(monkeypatch):
    monkeypatch.setattr("lmgym.engines.torch.engine.PREFILL_TOKENS", 20)
    compare(tiny_model(), ragged_requests(10))


def converse(engine: Engine, turns: int = 4) -> list[list[Completion]]:
    """Conversations of different lengths: each prompt is the last one, what was written, and perhaps a reply."""
    prompts = {seed: TRUNK + ids(3 + seed, seed=seed // 2) for seed in range(6)}
    said = []
    for turn in range(turns):
        requests = [
            Request(
                prompt, max_tokens=3 + (seed + turn) % 4, seed=10 * turn + seed, watch=force_after_multiples_of_three
            )
            for seed, prompt in prompts.items()
        ]
        completions = engine.generate(requests)
        check_shape(requests, completions)
        said.append(completions)
        for (seed, prompt), written in zip(list(prompts.items()), completions, strict=True):
            reply = ids((seed + turn) % 3, seed=1000 + seed)  # at times none
            prompts[seed] = prompt + tuple(written.token_ids) + reply
        prompts.pop(turn)  # one conversation ends
        prompts = dict(sorted(prompts.items(), key=lambda item: (item[0] * 7 + turn) % 5))
    return said


@pytest.mark.parametrize("architecture", SHARING)
@pytest.mark.parametrize("max_rows", [3, 128])
def test_conversations_of_several_turns(architecture, max_rows):
    model = tiny_model(architecture)
    fast, plain = converse(TorchEngine(model, max_rows)), converse(PlainEngine(model))
    assert any(0 in written.mask for turn in fast for written in turn)
    for one, other in zip(fast, plain, strict=True):
        for mine, exact in zip(one, other, strict=True):
            assert mine.token_ids == exact.token_ids
            assert mine.logprobs == pytest.approx(exact.logprobs, abs=1e-4)


@pytest.mark.parametrize("architecture", SHARING)
def test_forced_tokens_are_context_and_not_actions(architecture):
    model = tiny_model(architecture)
    requests = ragged_requests(6, max_tokens=14, watch=force_after_multiples_of_three)
    completions = compare(model, requests)
    check_against_transformers(model, requests, completions)
    forced = 0
    for written in completions:
        for place, (token, chosen) in enumerate(zip(written.token_ids, written.mask, strict=True)):
            if chosen and token % 3 == 0 and place + 3 < len(written.mask):
                assert tuple(written.token_ids[place + 1 : place + 4]) == FORCED
                assert written.mask[place + 1 : place + 4] == [0, 0, 0]
                forced += 3
    assert forced > 0


def test_forced_tokens_take_no_uniform_number():
    """With and without a forced token the second draw uses the same random number: seen at a flat distribution."""
    model = tiny_model()
    with torch.no_grad():
        model.network.get_output_embeddings().weight.zero_()
    request = Request(ids(5, seed=1), max_tokens=6, seed=3)
    free = TorchEngine(model).generate([request])[0]
    once = replace(request, watch=lambda written: Verdict(force=(50,)) if len(written) == 1 else GO_ON)
    forced = TorchEngine(model).generate([once])[0]
    assert forced.token_ids == [free.token_ids[0], 50, *free.token_ids[1:5]]


def test_forced_tokens_count_towards_the_budget():
    request = Request(ids(5, seed=1), max_tokens=3, seed=3, watch=lambda written: Verdict(force=FORCED))
    written = compare(tiny_model(), [request])[0]
    assert written.token_ids[1:] == [7, 8]
    assert written.mask == [1, 0, 0]
    assert written.finish_reason == "length"


def test_the_budget_cuts_and_says_so():
    completions = compare(tiny_model(), [replace(r, max_tokens=1 + r.seed) for r in ragged_requests(5)])
    assert [(len(c.token_ids), c.finish_reason) for c in completions] == [(n, "length") for n in (1, 2, 3, 4, 5)]


def test_an_end_token_and_a_watcher_stop_at_once():
    model = tiny_model()
    ends = list(range(20, 60))
    model.network.generation_config.eos_token_id = ends
    requests = ragged_requests(10, max_tokens=20)
    requests[1::2] = [replace(r, watch=lambda written: STOP if len(written) == 2 else GO_ON) for r in requests[1::2]]
    completions = compare(model, requests, max_rows=4)
    for index, written in enumerate(completions):
        ended = [token in ends for token in written.token_ids]
        assert written.finish_reason == "stop"
        assert not any(ended[:-1])
        assert ended[-1] or (index % 2 and len(written.token_ids) == 2)
        assert written.mask == [1] * len(ended), "the end token was chosen, and learns"


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
    requests = ragged_requests(6) + ragged_requests(3, trunk=(), max_tokens=9)
    together = TorchEngine(model, max_rows=4).generate(requests)
    for request, written in zip(requests, together, strict=True):
        check_same([request], TorchEngine(model).generate([request]), [written])


def test_a_large_vocabulary_is_drawn_from_alike_however_rows_are_batched():
    model = tiny_model(vocabulary=49_152)
    flatter = Distribution(temperature=3.0)  # so that every draw is from a long tail
    requests = [replace(r, distribution=flatter, max_tokens=10) for r in ragged_requests(10) + ragged_requests(10, ())]
    requests = [replace(request, seed=seed) for seed, request in enumerate(requests)]
    few, some, all_at_once = (TorchEngine(model, max_rows).generate(requests) for max_rows in (1, 3, 256))
    written = [token for completion in few for token in completion.token_ids]
    assert len(set(written)) > 150
    assert [c.token_ids for c in few] == [c.token_ids for c in some] == [c.token_ids for c in all_at_once]


def test_one_engine_through_changing_trunks():
    model = tiny_model()
    engine, plain = TorchEngine(model, max_rows=4), PlainEngine(model)
    other = ids(50, seed=200)
    calls = [
        ragged_requests(5),
        ragged_requests(5, trunk=other),
        ragged_requests(5),
        ragged_requests(1),
        ragged_requests(3, trunk=TRUNK[:20]),
        ragged_requests(3, trunk=()),
        ragged_requests(5, trunk=TRUNK + other),
        ragged_requests(5),
    ]
    for requests in calls:
        check_same(requests, engine.generate(requests), plain.generate(requests))


def test_what_was_read_after_one_trunk_is_not_taken_for_the_same_ids_after_another():
    model = tiny_model()
    engine, plain = TorchEngine(model), PlainEngine(model)
    own = [ids(8, seed=1), ids(8, seed=2)]
    for turn, trunk in enumerate([TRUNK, ids(40, seed=200), (), TRUNK[:20]]):
        # One token is sampled and none decoded, so that the slots hold exactly what the next prompts go on from.
        requests = [Request(trunk + part + (50,) * turn, max_tokens=1, seed=turn) for part in own]
        check_same(requests, engine.generate(requests), plain.generate(requests))


def test_a_prompt_that_ends_where_the_trunk_of_the_call_before_ended():
    model = tiny_model()
    engine, plain = TorchEngine(model), PlainEngine(model)
    for requests in (ragged_requests(4), [*ragged_requests(2), Request(TRUNK, max_tokens=3)]):
        check_same(requests, engine.generate(requests), plain.generate(requests))


@pytest.mark.parametrize("architecture", SHARING)
def test_new_weights_leave_nothing_of_the_old_ones(architecture):
    model = tiny_model(architecture)
    engine = TorchEngine(model, max_rows=8)
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
    assert {c.policy_version for c in new} == {1}
    assert {c.policy_version for c in old} == {0}


def test_continuing_after_new_weights_without_asking_the_old_prompts_first():
    model = tiny_model()
    engine = TorchEngine(model)
    requests = ragged_requests(4)
    written = engine.generate(requests)
    goes_on = [replace(r, prompt=r.prompt + tuple(c.token_ids)) for r, c in zip(requests, written, strict=True)]
    moved(model)
    check_same(goes_on, engine.generate(goes_on), PlainEngine(model).generate(goes_on))


@pytest.mark.parametrize("copied", [False, True])
def test_an_adapter_and_a_compute_copy_are_followed(copied):
    network = add_lora(tiny_network(), LoraSettings(rank=4, alpha=8))
    model = wrap_network(network, tiny_tokenizer(), torch.device("cpu"), torch.float32, "tiny", has_lora=True)
    engine = TorchEngine(model)
    if copied:  # as for bfloat16, which must not be tried on every CPU
        engine._worker = model.inference_copy()
    requests = ragged_requests()
    for seed in range(3):
        check_same(requests, engine.generate(requests), PlainEngine(model).generate(requests))
        shake_adapter(network, size=0.3, seed=seed)
        model.version += 1


def test_no_prompt_token_is_computed_twice(monkeypatch):
    model = tiny_model()
    computed, real = [], model.hidden_states
    monkeypatch.setattr(
        model, "hidden_states", lambda tokens, *rest: computed.append(tokens.numel()) or real(tokens, *rest)
    )
    engine = TorchEngine(model, max_rows=16)
    own = [ids(12, seed=1), ids(12, seed=2)]
    requests = [Request(TRUNK + own[seed % 2], max_tokens=5, seed=seed // 4) for seed in range(8)]
    read: set[tuple[int, ...]] = set()
    for reply in ((11, 12), ids(15, seed=3), ()):
        written = engine.generate(requests)
        said = [request.prompt + tuple(c.token_ids) for request, c in zip(requests, written, strict=True)]
        # All but the last token of each sequence was read, and what several begin with alike was read once.
        read |= {sequence[:end] for sequence in said for end in range(1, len(sequence))}
        assert sum(computed) == len(read)
        requests = [replace(r, prompt=sequence + reply) for r, sequence in zip(requests, said, strict=True)]


def test_newcomers_wait_for_those_whose_past_is_still_held(monkeypatch):
    model = tiny_model()
    computed, real = [], model.hidden_states
    monkeypatch.setattr(
        model, "hidden_states", lambda tokens, *rest: computed.append(tokens.numel()) or real(tokens, *rest)
    )
    engine = TorchEngine(model, max_rows=4)
    requests = [Request(TRUNK + ids(8, seed=seed), max_tokens=5, seed=seed) for seed in range(4)]
    written = engine.generate(requests)
    goes_on = [replace(r, prompt=r.prompt + tuple(c.token_ids)) for r, c in zip(requests, written, strict=True)]
    computed.clear()
    completions = engine.generate([Request(TRUNK + ids(9, seed=50), max_tokens=5), *goes_on])
    assert sum(computed) == 9 + 4 + sum(len(c.token_ids) - 1 for c in completions)


def test_nothing_asked_is_nothing_said():
    assert TorchEngine(tiny_model()).generate([]) == PlainEngine(tiny_model()).generate([]) == []


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_the_plain_engine_agrees_with_transformers(architecture):
    model = tiny_model(architecture)
    requests = ragged_requests(5, watch=force_after_multiples_of_three, max_tokens=8)
    completions = PlainEngine(model, max_rows=2).generate(requests)
    check_shape(requests, completions)
    check_against_transformers(model, requests, completions)


@pytest.mark.parametrize("trunk", [(), TRUNK])
@pytest.mark.parametrize(("reply", "passes"), [(5, [1] * 6), (CATCH_UP - 1, [1] * CATCH_UP), (CATCH_UP, [CATCH_UP, 1])])
def test_a_conversation_that_goes_on_computes_only_what_is_new(monkeypatch, trunk, reply, passes):
    model = tiny_model()
    engine = TorchEngine(model)
    fed: list[int] = []
    forward = engine._forward
    monkeypatch.setattr(engine, "_forward", lambda tokens, *rest: fed.append(tokens.shape[1]) or forward(tokens, *rest))
    prompts = [trunk + ids(30, seed=1), trunk + ids(25, seed=2)]
    first = engine.generate([Request(prompt, 4, seed=3) for prompt in prompts])
    fed.clear()
    going_on = [
        prompt + tuple(written.token_ids) + ids(reply, seed=9) for prompt, written in zip(prompts, first, strict=True)
    ]
    engine.generate([Request(prompt, 1, seed=4) for prompt in going_on])
    assert fed == passes, "the last sampled token and the reply: one per pass if they are few"
