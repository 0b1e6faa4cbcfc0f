"""Ragged requests, and what it means that two engines say the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hand_made import plain_network, plain_scores, ragged_rows
from torch import Tensor

from lmgym.engines.engine import Completion, Engine, Request
from lmgym.engines.row import Row
from lmgym.engines.sampling import BLOCK, uniform_stream
from lmgym.engines.torch.engine import TorchEngine
from lmgym.engines.torch.kv_cache import KVCache
from lmgym.models.attention import AttentionBackend
from lmgym.models.language_model import LanguageModel

FORCED = (7, 8, 9)
MULTIPLES_OF_THREE = frozenset(range(0, 104, 3))
"""Where a tool is asked; it forces three ids."""


def ids(count: int, seed: int) -> tuple[int, ...]:
    return tuple(int(i) for i in np.random.default_rng(seed).integers(3, 99, count))


PREFIX = ids(40, seed=100)


def ragged_requests(count: int = 7, prefix: tuple[int, ...] = PREFIX, **settings) -> list[Request]:
    lengths = [1, 9, 2, 30, 5, 5, 17, 3, 12, 8]
    return [
        Request(prefix + ids(lengths[i % 10], seed=i), **{"max_tokens": 6, "seed": i, **settings}) for i in range(count)
    ]


def computed_tokens(engine: TorchEngine) -> list[int]:
    """Of each forward pass to come, how many tokens it computes."""
    computed: list[int] = []
    real = engine._decoder.hidden_states

    def counted(tokens: Tensor, positions: Tensor, backend: AttentionBackend) -> Tensor:
        computed.append(tokens.numel())
        return real(tokens, positions, backend)

    engine._decoder.hidden_states = counted
    return computed


def kv_tensors(cache: KVCache) -> list[Tensor]:
    """All tensors of a KV cache."""
    return [*cache.own.keys, *cache.own.values, *cache.shared.keys, *cache.shared.values]


def continued(request: Request, written: Completion, forced: tuple[int, ...] = ()) -> Request | None:
    """The request that goes on with a completion that stopped, behind forced ids; None when the budget is used up."""
    forced = forced[: request.max_tokens - len(written.token_ids)]
    left = request.max_tokens - len(written.token_ids) - len(forced)
    if written.finish != "stop" or not left:
        return None
    prompt = (*request.prompt, *written.token_ids, *forced)
    return replace(request, prompt=prompt, max_tokens=left, draws=request.draws + len(written.token_ids))


def generate_with_tool(
    engine: Engine, requests: Sequence[Request], forced: tuple[int, ...] = FORCED
) -> list[list[tuple[Request, Completion]]]:
    """For each request all that it takes when a tool forces ids into the text at each of its stop ids."""
    asked = dict(zip(engine.submit(requests), enumerate(requests), strict=True))
    said: list[list[tuple[Request, Completion]]] = [[] for _ in requests]
    while asked:
        for request_id, completion in engine.wait(list(asked)).items():
            place, request = asked.pop(request_id)
            said[place].append((request, completion))
            if following := continued(request, completion, forced):
                asked[engine.submit([following])[0]] = (place, following)
    return said


def check_shape(requests: Sequence[Request], completions: Sequence[Completion]) -> None:
    assert len(requests) == len(completions)
    for request, written in zip(requests, completions, strict=True):
        assert 0 < len(written.token_ids) <= request.max_tokens
        assert len(written.token_ids) == len(written.logprobs)


def check_same(requests: Sequence[Request], fast: Sequence[Completion], plain: Sequence[Completion]) -> None:
    check_shape(requests, fast)
    for one, other in zip(fast, plain, strict=True):
        assert one.token_ids == other.token_ids
        assert one.finish == other.finish
        assert one.versions == other.versions
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def check_against_transformers(
    model: LanguageModel, requests: Sequence[Request], completions: Sequence[Completion]
) -> None:
    """Each log-prob is that of the token after everything before it."""
    for request, written in zip(requests, completions, strict=True):
        sequence = (*request.prompt, *written.token_ids)
        tokens, mask, _ = ragged_rows([(sequence, [0] * len(request.prompt) + [1] * len(written.token_ids))])
        with torch.no_grad():
            exact, _ = plain_scores(plain_network(model), tokens, mask, request.distribution.temperature or 1.0)
        assert written.logprobs == pytest.approx(exact[0, len(request.prompt) :].tolist(), abs=1e-4)


def by_block(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """The probability of each block of ids, and [blocks, BLOCK] that of each id given its block."""
    blocks = torch.nn.functional.pad(probabilities, (0, -len(probabilities) % BLOCK)).view(-1, BLOCK)
    return blocks.sum(dim=1), blocks / blocks.sum(dim=1, keepdim=True).clamp(min=1e-300)


def is_in_cell(probabilities: Tensor, token: int, pair: Sequence[float] | np.ndarray, slack: float = 1e-4) -> bool:
    """Whether the first number falls into the share of a token's block, and the second into its own within it."""
    blocks, within = by_block(probabilities.double())
    block, place = divmod(token, BLOCK)
    # Where a whole block is next to impossible, float32 knows the shares within it only roughly.
    rough = slack + 1e-42 / float(blocks[block])
    for shares, index, number, margin in ((blocks, block, pair[0], slack), (within[block], place, pair[1], rough)):
        end = float(shares[: index + 1].sum())
        if not end - float(shares[index]) - margin <= number <= end + margin:
            return False
    return True


def check_exact(model: LanguageModel, requests: Sequence[Request], completions: Sequence[Completion]) -> None:
    """Each token is the one its own two numbers draw from Transformers' logits, and all else follows from the tokens.

    Unlike a comparison with another engine, this does not fail where a number falls between two ids but for rounding.
    """
    check_shape(requests, completions)
    network = plain_network(model)
    for request, written in zip(requests, completions, strict=True):
        replayed, uniforms = Row.start(0, request), uniform_stream(request.seed, request.draws)
        with torch.no_grad():
            logits = network(input_ids=torch.tensor([[*request.prompt, *written.token_ids]])).logits[0]
        left = request.distribution.apply_(logits[len(request.prompt) - 1 : -1].clone()).log_softmax(dim=-1)
        for place, token in enumerate(written.token_ids):
            assert not replayed.done
            pair = uniforms.random(2)
            assert written.logprobs[place] == pytest.approx(float(left[place, token]), abs=1e-4)
            if request.distribution.temperature == 0:
                assert float(left[place].max() - left[place, token]) < 1e-4
            else:
                assert is_in_cell(left[place].exp(), token, pair)
            replayed.append(token, written.logprobs[place], model.eos_ids, written.versions[place])
        assert replayed.done
        assert replayed.completion == written


def converse_out_of_step(engine: Engine) -> list[tuple[int, int, Request, Completion]]:
    """Conversation, turn and what was asked and said; each goes on at once, whatever the others are at.

    Within a turn a tool forces ids after each multiple of three.
    """

    def ask(conversation: int, turn: int, request: Request) -> None:
        writing[engine.submit([request])[0]] = (conversation, turn, request)

    def begin(conversation: int, turn: int, prompt: tuple[int, ...]) -> None:
        budget, seed = 2 + (3 * conversation + turn) % 7, 10 * turn + conversation
        ask(conversation, turn, Request(prompt, budget, seed=seed, stop_ids=MULTIPLES_OF_THREE))

    said: list[tuple[int, int, Request, Completion]] = []
    writing: dict[int, tuple[int, int, Request]] = {}
    for conversation in range(6):
        begin(conversation, 0, PREFIX + ids(3 + 5 * conversation, seed=conversation // 2))
    while writing:
        for request_id, completion in engine.wait(list(writing)).items():
            conversation, turn, request = writing.pop(request_id)
            said.append((conversation, turn, request, completion))
            if following := continued(request, completion, FORCED):
                ask(conversation, turn, following)
            elif turn < 3:
                reply = ids((0, 2, 15)[(conversation + turn) % 3], seed=1000 + conversation)
                begin(conversation, turn + 1, request.prompt + tuple(completion.token_ids) + reply)
    return said


def moved(model: LanguageModel, seed: int = 5) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.network.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    model.version += 1
