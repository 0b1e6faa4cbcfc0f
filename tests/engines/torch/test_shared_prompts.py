"""Rows of a group read their prompt from one place, prompts are prefilled in bounded passes, and nothing changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import tiny_model
from engine_checks import PREFIX, check_exact, computed_tokens, ids

from lmgym.engines.engine import Request
from lmgym.engines.torch import engine as engine_module
from lmgym.engines.torch.engine import TorchEngine
from lmgym.engines.torch.kv_cache import CAPACITY_STEP
from lmgym.engines.torch.scheduler import MIN_SHARED_TOKENS


def group_requests(lengths: tuple[int, ...], size: int, prefix: tuple[int, ...] = ()) -> list[Request]:
    """A group of requests for each prompt length; the members of a group have budgets of their own."""
    return [
        Request(prefix + ids(length, seed=group), 3 + 2 * member, seed=10 * group + member)
        for group, length in enumerate(lengths)
        for member in range(size)
    ]


@pytest.mark.parametrize("prefix", [(), PREFIX])
@pytest.mark.parametrize("lengths", [(80,), (60, 200, 33), (150, MIN_SHARED_TOKENS // 2, 70)])
def test_groups_with_long_and_short_prompts(prefix, lengths):
    model, requests = tiny_model(), group_requests(lengths, 5, prefix)
    engine = TorchEngine(model)
    request_ids = engine.submit(requests)
    done = engine.wait(request_ids)
    # What all requests begin with is the engine's shared prefix.
    assert any(prompt is not None for prompt in engine._cache.prompts) == (len(lengths) > 1)
    while len(done) < len(request_ids):
        done |= engine.wait([request_id for request_id in request_ids if request_id not in done])
    check_exact(model, requests, [done[request_id] for request_id in request_ids])


def test_groups_in_little_memory_and_with_few_slots():
    model, requests = tiny_model(), group_requests((100, 130, 90, 100), 4)
    for max_running, rows in ((3, 100), (64, 3), (64, 6), (2, 2)):
        most = rows * CAPACITY_STEP * TorchEngine(model)._cache.bytes_per_token
        check_exact(model, requests, TorchEngine(model, max_running, max_bytes=most).generate(requests))


def test_a_group_goes_on_for_several_turns_without_computing_its_prompt_again():
    model = tiny_model()
    engine = TorchEngine(model)
    computed = computed_tokens(engine)
    requests = [Request(ids(120, seed=1), 6, seed=seed) for seed in range(4)]
    for turn in range(3):
        before = sum(computed)
        written = engine.generate(requests)
        check_exact(model, requests, written)
        new = sum(computed) - before
        assert new < 4 * (6 + 12) + (120 if turn == 0 else 0), "only what is new"
        replies = [ids(10, seed=100 + member) for member in range(4)]
        requests = [
            replace(request, prompt=request.prompt + tuple(said.token_ids) + reply)
            for request, said, reply in zip(requests, written, replies, strict=True)
        ]


@pytest.mark.parametrize("tokens", [16, 50, 64])
def test_a_long_prompt_is_prefilled_in_several_passes(monkeypatch, tokens):
    monkeypatch.setattr(engine_module, "PREFILL_TOKENS", tokens)
    model = tiny_model()
    requests = [Request(ids(length, seed=length), 4, seed=length) for length in (130, 20, 9, 64, 301)]
    engine = TorchEngine(model)
    computed = computed_tokens(engine)
    check_exact(model, requests, engine.generate(requests))
    assert max(computed) == tokens


def test_attention_of_a_prefill_takes_memory_linear_in_the_prompt():
    """No tensor of a pass has more elements than a few numbers per token and hidden unit."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, given=(), named=None):
            result = function(*given, **(named or {}))
            for each in result if isinstance(result, tuple | list) else [result]:
                if isinstance(each, torch.Tensor):
                    self.size = max(self.size, each.numel())
            return result

        size = 0

    model = tiny_model()
    sizes = []
    for length in (500, 1000):
        engine = TorchEngine(model)
        with Largest() as largest:
            engine.generate([Request(ids(length, seed=1), 1)])
        sizes.append(largest.size)
    assert sizes[1] <= 2.1 * sizes[0]
