"""The last matrix product and the softmax over the vocabulary, a chunk of positions at a time in both directions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lmgym.models.distribution import Distribution
from lmgym.models.logit_transform import IDENTITY, LogitTransform

CHUNK = 512
"""How many positions' logits stand in memory at once."""

LOWEST = -1e30
"""A logit that was cut away: its probability is 0, and 0 times it is not nan."""


class VocabularyHead(torch.autograd.Function):
    """Log-probabilities and entropies of target tokens from hidden states.

    The probabilities of the last chunk stay for the gradient, those of earlier ones are computed again, so that a
    micro-batch of one chunk computes nothing twice and a longer one needs no more memory.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        distribution: Distribution,
        transform: LogitTransform = IDENTITY,
    ) -> tuple[Tensor, Tensor]:
        """Takes states [positions, size] in the type to compute in, and the head's weight [vocabulary, size]."""
        ctx.save_for_backward(states, weight, bias, targets)
        ctx.set_materialize_grads(False)  # a loss that leaves the entropies alone pays nothing for them
        ctx.distribution, ctx.transform = distribution, transform
        logprobs, entropies = [], []
        for rows in _chunks(len(targets)):
            logits = transform.apply(_products(states[rows], weight, bias))
            logits = distribution.apply(logits, keep=targets[rows])
            chosen = logits.gather(1, targets[rows, None])[:, 0]
            top = logits.amax(dim=1, keepdim=True)
            shifted = logits.sub_(top).clamp_(min=LOWEST)
            weights = shifted.exp()
            total = weights.sum(dim=1)
            logprobs.append(chosen - top[:, 0] - total.log())
            # Entropy: log Z − E[logit]; the product reuses the logits' own memory.
            entropies.append(total.log() - shifted.mul_(weights).sum(dim=1) / total)
        # The slope of a soft cap needs the logits again, and they give the probabilities.
        keeps = any(ctx.needs_input_grad) and transform.softcap is None
        ctx.last_probabilities = weights.div_(total[:, None]) if keeps else None
        return torch.cat(logprobs), torch.cat(entropies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """By its logits, a log-probability has the gradient one-hot − p, and an entropy −p · (log p + entropy)."""
        states, weight, bias, targets = ctx.saved_tensors
        by_logprob, by_entropy = gradients
        if by_logprob is None:
            by_logprob = torch.zeros(len(targets), device=states.device)
        learns_weight, learns_bias = ctx.needs_input_grad[1], bias is not None and ctx.needs_input_grad[2]
        states_gradient = torch.empty_like(states)
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if learns_weight else None
        bias_gradient = torch.zeros_like(bias, dtype=torch.float32) if learns_bias else None
        for rows in reversed(_chunks(len(targets))):
            probabilities, ctx.last_probabilities = ctx.last_probabilities, None
            slope: Tensor | float = ctx.transform.scale
            if probabilities is None:
                logits = ctx.transform.apply(_products(states[rows], weight, bias))
                slope = ctx.transform.slope(logits)
                logits = ctx.distribution.apply(logits, keep=targets[rows])
                probabilities = logits.sub_(logits.logsumexp(dim=1, keepdim=True)).exp_()
            wanted = by_logprob[rows, None].float()
            shape = None if by_entropy is None else _entropy_gradient(probabilities).mul_(by_entropy[rows, None])
            by_logits = probabilities.mul_(-wanted).scatter_add_(1, targets[rows, None], wanted)
            if shape is not None:
                by_logits.add_(shape)
            by_products = by_logits.div_(ctx.distribution.temperature).mul_(slope)
            compact = by_products.to(states.dtype)
            states_gradient[rows] = compact @ weight.to(states.dtype)
            if weight_gradient is not None:
                weight_gradient.addmm_(compact.float().t(), states[rows].float())
            if bias_gradient is not None:
                bias_gradient += by_products.sum(dim=0)
        if weight_gradient is not None:
            weight_gradient = weight_gradient.to(weight.dtype)
        return states_gradient, weight_gradient, bias_gradient, None, None, None


def _entropy_gradient(probabilities: Tensor) -> Tensor:
    """−p · (log p + entropy) for each row; what was cut away has none."""
    logs = probabilities.clamp(min=1e-38).log_()
    entropies = -(probabilities * logs).sum(dim=1, keepdim=True)
    return logs.add_(entropies).mul_(probabilities).neg_()


def _products(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The output layer's products [positions, vocabulary], multiplied in the states' type, as the sampler does."""
    bias = None if bias is None else bias.to(states.dtype)
    return F.linear(states, weight.to(states.dtype), bias).float()


def _chunks(count: int) -> list[slice]:
    # At least one chunk, be it empty: a micro-batch may hold no chosen token.
    return [slice(start, start + CHUNK) for start in range(0, max(count, 1), CHUNK)]
