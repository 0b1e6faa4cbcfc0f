"""Ragged requests, and what it means that two engines say the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hand_made import plain_scores, plain_twin, ragged_rows
from torch import Tensor

from lmgym.engines.engine import GO_ON, Completion, Engine, Request, Verdict
from lmgym.engines.row import Row
from lmgym.engines.sampling import BLOCK, uniform_stream
from lmgym.models.language_model import LanguageModel

FORCED = (7, 8, 9)


def ids(count: int, seed: int) -> tuple[int, ...]:
    return tuple(int(i) for i in np.random.default_rng(seed).integers(3, 99, count))


TRUNK = ids(40, seed=100)


def ragged_requests(count: int = 7, trunk: tuple[int, ...] = TRUNK, **settings) -> list[Request]:
    lengths = [1, 9, 2, 30, 5, 5, 17, 3, 12, 8]
    return [
        Request(trunk + ids(lengths[i % 10], seed=i), **{"max_tokens": 6, "seed": i, **settings}) for i in range(count)
    ]


def force_after_multiples_of_three(written: Sequence[int]) -> Verdict:
    return Verdict(force=FORCED) if written[-1] % 3 == 0 else GO_ON


def check_shape(requests: Sequence[Request], completions: Sequence[Completion]) -> None:
    assert len(requests) == len(completions)
    for request, written in zip(requests, completions, strict=True):
        assert 0 < len(written.token_ids) <= request.max_tokens
        assert len(written.token_ids) == len(written.logprobs) == len(written.mask)
        assert set(written.mask) <= {0, 1}
        assert all(logprob == 0.0 for logprob, chosen in zip(written.logprobs, written.mask, strict=True) if not chosen)


def check_same(requests: Sequence[Request], fast: Sequence[Completion], plain: Sequence[Completion]) -> None:
    check_shape(requests, fast)
    for one, other in zip(fast, plain, strict=True):
        assert one.token_ids == other.token_ids
        assert one.mask == other.mask
        assert one.finish_reason == other.finish_reason
        assert one.policy_version == other.policy_version
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def check_against_transformers(
    model: LanguageModel, requests: Sequence[Request], completions: Sequence[Completion]
) -> None:
    """Each log-prob is that of the token after everything before it, forced tokens included."""
    for request, written in zip(requests, completions, strict=True):
        sequence = (*request.prompt, *written.token_ids)
        tokens, mask, _ = ragged_rows([(sequence, [0] * len(request.prompt) + written.mask)])
        with torch.no_grad():
            exact, _ = plain_scores(plain_twin(model), tokens, mask, request.distribution.temperature or 1.0)
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
    for shares, index, number, room in ((blocks, block, pair[0], slack), (within[block], place, pair[1], rough)):
        end = float(shares[: index + 1].sum())
        if not end - float(shares[index]) - room <= number <= end + room:
            return False
    return True


def check_exact(model: LanguageModel, requests: Sequence[Request], completions: Sequence[Completion]) -> None:
    """Each token is the one its own two numbers draw from Transformers' logits, and all else follows from the tokens.

    Unlike a comparison with another engine, this does not fail where a number falls between two ids but for rounding.
    """
    check_shape(requests, completions)
    network = plain_twin(model)
    for request, written in zip(requests, completions, strict=True):
        replayed, uniforms = Row.start(0, request), uniform_stream(request.seed)
        with torch.no_grad():
            logits = network(input_ids=torch.tensor([[*request.prompt, *written.token_ids]])).logits[0]
        left = request.distribution.apply(logits[len(request.prompt) - 1 : -1].clone()).log_softmax(dim=-1)
        for place, token in enumerate(written.token_ids):
            if not written.mask[place]:
                continue
            assert not replayed.done
            pair = uniforms.random(2)
            assert written.logprobs[place] == pytest.approx(float(left[place, token]), abs=1e-4)
            if request.distribution.temperature == 0:
                assert float(left[place].max() - left[place, token]) < 1e-4
            else:
                assert is_in_cell(left[place].exp(), token, pair)
            replayed.accept(token, written.logprobs[place], model)
        assert replayed.done
        assert replayed.completion == written


def converse_out_of_step(engine: Engine) -> dict[tuple[int, int], tuple[Request, Completion]]:
    """By conversation and turn; each goes on as soon as its own turn is over, whatever the others are at."""

    def ask(conversation: int, turn: int, prompt: tuple[int, ...]) -> None:
        budget = 2 + (3 * conversation + turn) % 7
        request = Request(prompt, budget, seed=10 * turn + conversation, watch=force_after_multiples_of_three)
        writing[engine.submit([request])[0]] = (conversation, turn, request)

    said: dict[tuple[int, int], tuple[Request, Completion]] = {}
    writing: dict[int, tuple[int, int, Request]] = {}
    for conversation in range(6):
        ask(conversation, 0, TRUNK + ids(3 + 5 * conversation, seed=conversation // 2))
    while writing:
        for ticket, completion in engine.finished(list(writing)).items():
            conversation, turn, request = writing.pop(ticket)
            said[conversation, turn] = (request, completion)
            if turn < 3:
                reply = ids((0, 2, 15)[(conversation + turn) % 3], seed=1000 + conversation)
                ask(conversation, turn + 1, request.prompt + tuple(completion.token_ids) + reply)
    return said


def moved(model: LanguageModel, seed: int = 5) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.network.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    model.version += 1
