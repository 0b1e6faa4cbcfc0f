"""The chunked head has the value and the gradient of the plain log-softmax."""

import pytest
import torch

from lmgym.learning.vocabulary_head import VocabularyHead

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
    monkeypatch.setattr("lmgym.learning.vocabulary_head.CHUNK", chunk)
    states, weight, shift, targets = inputs(bias)
    learning = [tensor for tensor in (states, weight, shift) if tensor is not None]
    upstream = torch.linspace(-2, 3, POSITIONS)

    distribution = (torch.nn.functional.linear(states, weight, shift) / temperature).log_softmax(dim=-1)
    expected = distribution.gather(1, targets[:, None])[:, 0]
    expected_gradients = torch.autograd.grad((expected * upstream).sum(), learning)

    logprobs, entropies = VocabularyHead.apply(states, weight, shift, targets, temperature)
    gradients = torch.autograd.grad((logprobs * upstream).sum(), learning)
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies, -(distribution.exp() * distribution).sum(dim=-1), atol=1e-5, rtol=1e-5)
    for gradient, exact in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, exact, atol=1e-5, rtol=1e-5)


def test_a_frozen_head_passes_the_gradient_on_and_takes_none():
    states, weight, shift, targets = inputs(bias=True)
    weight.requires_grad_(False)
    shift.requires_grad_(False)
    VocabularyHead.apply(states, weight, shift, targets, 1.0)[0].sum().backward()
    assert states.grad.abs().sum() > 0
    assert weight.grad is None
    assert shift.grad is None


def test_large_logits_do_not_overflow():
    states, weight, _, targets = inputs(bias=False)
    logprobs, entropies = VocabularyHead.apply(states * 1e3, weight * 1e2, None, targets, 1.0)
    expected = torch.nn.functional.linear(states * 1e3, weight * 1e2).log_softmax(dim=-1).gather(1, targets[:, None])
    torch.testing.assert_close(logprobs, expected[:, 0])
    assert entropies.isfinite().all()


def test_no_position_at_all_is_an_empty_answer_that_still_has_a_gradient():
    states, weight, _, targets = inputs(bias=False)
    logprobs, entropies = VocabularyHead.apply(states[:0], weight, None, targets[:0], 1.0)
    assert logprobs.shape == entropies.shape == (0,)
    logprobs.sum().backward()
    assert weight.grad.abs().sum() == 0
