"""The chunked head has the values and gradients of a plain log-softmax."""

import pytest
import torch

from lmgym.models.distribution import FULL_SOFTMAX, Distribution
from lmgym.models.logit_transform import LogitTransform
from lmgym.models.vocabulary_head import VocabularyHead

POSITIONS, SIZE, VOCABULARY = 11, 6, 37


def inputs(bias: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(POSITIONS, SIZE, generator=generator).requires_grad_()
    weight = torch.randn(VOCABULARY, SIZE, generator=generator).requires_grad_()
    shift = torch.randn(VOCABULARY, generator=generator).requires_grad_() if bias else None
    return states, weight, shift, torch.randint(0, VOCABULARY, (POSITIONS,), generator=generator)


@pytest.mark.parametrize("chunk", [1, 4, 11, 512])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.5])
@pytest.mark.parametrize("bias", [False, True])
def test_value_and_gradient_are_those_of_log_softmax(monkeypatch, chunk, temperature, bias):
    monkeypatch.setattr("lmgym.models.vocabulary_head.CHUNK", chunk)
    monkeypatch.setattr("lmgym.models.vocabulary_head.COLUMNS", 7)
    states, weight, shift, targets = inputs(bias)
    learning = [tensor for tensor in (states, weight, shift) if tensor is not None]
    upstream = torch.linspace(-2, 3, POSITIONS)

    distribution = (torch.nn.functional.linear(states, weight, shift) / temperature).log_softmax(dim=-1)
    expected = distribution.gather(1, targets[:, None])[:, 0]
    expected_entropies = -(distribution.exp() * distribution).sum(dim=-1)
    both = (expected * upstream).sum() + (expected_entropies * upstream.flip(0)).sum()
    expected_gradients = torch.autograd.grad((expected * upstream).sum(), learning, retain_graph=True)
    expected_of_both = torch.autograd.grad(both, learning, retain_graph=True)

    logprobs, entropies = VocabularyHead.apply(states, weight, shift, targets, Distribution(temperature))
    gradients = torch.autograd.grad((logprobs * upstream).sum(), learning)
    logprobs, entropies = VocabularyHead.apply(states, weight, shift, targets, Distribution(temperature))
    of_both = torch.autograd.grad((logprobs * upstream).sum() + (entropies * upstream.flip(0)).sum(), learning)
    for gradient, exact in zip(of_both, expected_of_both, strict=True):
        torch.testing.assert_close(gradient, exact, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies, -(distribution.exp() * distribution).sum(dim=-1), atol=1e-5, rtol=1e-5)
    for gradient, exact in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk", [4, 512])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "truncated", [Distribution(top_k=5), Distribution(0.6, top_p=0.7), Distribution(1.7, 8, 0.8), Distribution(top_k=1)]
)
def test_value_and_gradient_of_a_truncated_distribution_are_those_of_the_masked_log_softmax(
    monkeypatch, chunk, bias, truncated
):
    monkeypatch.setattr("lmgym.models.vocabulary_head.CHUNK", chunk)
    monkeypatch.setattr("lmgym.models.vocabulary_head.COLUMNS", 7)
    states, weight, shift, targets = inputs(bias)
    learning = [tensor for tensor in (states, weight, shift) if tensor is not None]
    upstream = torch.linspace(-2, 3, POSITIONS)

    logits = torch.nn.functional.linear(states, weight, shift)
    removed = truncated.apply_(logits.detach().clone(), keep=targets).isinf()
    assert 0 < removed.sum() < removed.numel()
    assert truncated.apply_(logits.detach().clone()).gather(1, targets[:, None]).isinf().any(), (
        "some target is kept only because it is a target"
    )
    left = (logits / truncated.temperature).masked_fill(removed, -1e30).log_softmax(dim=-1)
    expected = left.gather(1, targets[:, None])[:, 0]
    expected_gradients = torch.autograd.grad((expected * upstream).sum(), learning)

    logprobs, entropies = VocabularyHead.apply(states, weight, shift, targets, truncated)
    gradients = torch.autograd.grad((logprobs * upstream).sum(), learning)
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies, -(left.exp() * left).sum(dim=-1), atol=1e-5, rtol=1e-5)
    for gradient, exact in zip(gradients, expected_gradients, strict=True):
        assert gradient.isfinite().all()
        torch.testing.assert_close(gradient, exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk", [4, 512])
@pytest.mark.parametrize("transform", [LogitTransform(0.3), LogitTransform(softcap=1.5), LogitTransform(2.0, 3.0)])
@pytest.mark.parametrize("distribution", [Distribution(0.7), Distribution(1.7, 8, 0.8)])
def test_value_and_gradient_go_through_a_scale_and_a_soft_cap(monkeypatch, chunk, transform, distribution):
    monkeypatch.setattr("lmgym.models.vocabulary_head.CHUNK", chunk)
    monkeypatch.setattr("lmgym.models.vocabulary_head.COLUMNS", 7)
    states, weight, shift, targets = inputs(bias=True)
    assert shift is not None
    upstream = torch.linspace(-2, 3, POSITIONS)

    logits = torch.nn.functional.linear(states, weight, shift) * transform.scale
    if transform.softcap is not None:
        logits = transform.softcap * torch.tanh(logits / transform.softcap)
    removed = distribution.apply_(logits.detach().clone(), keep=targets).isinf()
    left = (logits / distribution.temperature).masked_fill(removed, -1e30).log_softmax(dim=-1)
    expected = left.gather(1, targets[:, None])[:, 0]
    expected_entropies = -(left.exp() * left).sum(dim=-1)
    loss = (expected * upstream).sum() + (expected_entropies * upstream.flip(0)).sum()
    expected_gradients = torch.autograd.grad(loss, [states, weight, shift])

    logprobs, entropies = VocabularyHead.apply(states, weight, shift, targets, distribution, transform)
    loss = (logprobs * upstream).sum() + (entropies * upstream.flip(0)).sum()
    gradients = torch.autograd.grad(loss, [states, weight, shift])
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies, expected_entropies, atol=1e-5, rtol=1e-5)
    for gradient, exact in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, exact, atol=2e-5, rtol=1e-4)


def test_the_gradient_is_zero_where_only_one_id_is_kept():
    states, weight, _, _ = inputs(bias=False)
    targets = torch.nn.functional.linear(states, weight).argmax(dim=-1)
    logprobs, entropies = VocabularyHead.apply(states, weight, None, targets, Distribution(top_k=1))
    logprobs.sum().backward()
    assert logprobs.abs().max() == entropies.abs().max() == 0
    assert states.grad is not None
    assert weight.grad is not None
    assert states.grad.abs().max() == weight.grad.abs().max() == 0


def test_a_frozen_head_gets_no_gradient_but_the_hidden_states_do():
    states, weight, shift, targets = inputs(bias=True)
    assert shift is not None
    weight.requires_grad_(False)
    shift.requires_grad_(False)
    VocabularyHead.apply(states, weight, shift, targets, FULL_SOFTMAX)[0].sum().backward()
    assert states.grad is not None
    assert states.grad.abs().sum() > 0
    assert weight.grad is None
    assert shift.grad is None


def test_greedy_decoding_has_the_gradient_of_temperature_1():
    states, weight, _, targets = inputs(bias=False)
    greedy, exact = (
        torch.autograd.grad(VocabularyHead.apply(states, weight, None, targets, distribution)[0].sum(), states)[0]
        for distribution in (Distribution(temperature=0.0), FULL_SOFTMAX)
    )
    assert torch.equal(greedy, exact)


def test_large_logits_do_not_overflow():
    states, weight, _, targets = inputs(bias=False)
    logprobs, entropies = VocabularyHead.apply(states * 1e3, weight * 1e2, None, targets, FULL_SOFTMAX)
    expected = torch.nn.functional.linear(states * 1e3, weight * 1e2).log_softmax(dim=-1).gather(1, targets[:, None])
    torch.testing.assert_close(logprobs, expected[:, 0])
    assert entropies.isfinite().all()


def test_no_positions_give_empty_results_with_a_zero_gradient():
    states, weight, _, targets = inputs(bias=False)
    logprobs, entropies = VocabularyHead.apply(states[:0], weight, None, targets[:0], FULL_SOFTMAX)
    assert logprobs.shape == entropies.shape == (0,)
    logprobs.sum().backward()
    assert weight.grad is not None
    assert weight.grad.abs().sum() == 0


@pytest.mark.parametrize("chunk", [4, 512])
def test_a_float32_weight_is_multiplied_in_the_dtype_of_the_states_and_gets_a_float32_gradient(monkeypatch, chunk):
    monkeypatch.setattr("lmgym.models.vocabulary_head.CHUNK", chunk)
    monkeypatch.setattr("lmgym.models.vocabulary_head.COLUMNS", 7)
    states, weight, _, targets = inputs(bias=False)
    rounded = states.detach().bfloat16().requires_grad_()
    logprobs, _ = VocabularyHead.apply(rounded, weight, None, targets, FULL_SOFTMAX)
    by_states, by_weight = torch.autograd.grad(logprobs.sum(), [rounded, weight])

    copies = rounded.detach().float().requires_grad_(), weight.detach().bfloat16().float().requires_grad_()
    expected = (copies[0] @ copies[1].t()).log_softmax(dim=-1).gather(1, targets[:, None])[:, 0]
    expected_by_states, expected_by_weight = torch.autograd.grad(expected.sum(), copies)
    assert (by_states.dtype, by_weight.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(logprobs, expected, atol=0.05, rtol=0.02)
    torch.testing.assert_close(by_states.float(), expected_by_states, atol=0.05, rtol=0.02)
    torch.testing.assert_close(by_weight, expected_by_weight, atol=0.05, rtol=0.02)


def test_a_graph_that_is_kept_gives_the_same_gradient_again():
    states, weight, _, targets = inputs(bias=False)
    logprobs, _ = VocabularyHead.apply(states, weight, None, targets, FULL_SOFTMAX)
    first = torch.autograd.grad(logprobs.sum(), [states, weight], retain_graph=True)
    second = torch.autograd.grad(logprobs.sum(), [states, weight])
    torch.testing.assert_close(second, first)
