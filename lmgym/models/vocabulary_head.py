"""The output layer and the softmax over the vocabulary, forward and backward, one chunk of positions at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmgym.models.distribution import Distribution
from lmgym.models.logit_transform import IDENTITY, LogitTransform
from lmgym.models.onednn_products import product

CHUNK = 128
"""Positions whose logits are in memory at the same time."""

COLUMNS = 1 << 14
"""Columns of the logits that are computed at a time: for a product, oneDNN copies its weight into its own format."""

MASKED_LOGIT = -1e30
"""Replaces -inf for truncated ids: their probability is still 0, and 0 times it is not nan."""


class VocabularyHead(torch.autograd.Function):
    """Log-probabilities and entropies of target tokens, from hidden states, without [positions, vocabulary] tensors.

    With hidden states h [positions, size], output layer W [vocabulary, size] and b [vocabulary], targets y:

        x = h Wᵀ + b                   products, [CHUNK, vocabulary]
        z = truncate(transform(x) / T) logits under the sampling distribution; -inf where top-k or top-p truncates
        p = softmax(z)
        logprob = z_y − logsumexp(z)                     [CHUNK]
        entropy = logsumexp(z) − Σ p z                   [CHUNK]

    Gradients, given g = ∂loss/∂logprob and e = ∂loss/∂entropy, both [CHUNK]:

        ∂loss/∂z = g · (onehot(y) − p) − e · p · (log p + entropy)
        ∂loss/∂x = ∂loss/∂z / T · transform'(x)
        ∂loss/∂h = ∂loss/∂x W        ∂loss/∂W = Σ over chunks of (∂loss/∂x)ᵀ h        ∂loss/∂b = Σ ∂loss/∂x

    Truncated ids have p = 0 and hence no gradient; which ids are truncated is treated as constant.

        forward     chunk 0      chunk 1      chunk 2        kept: h, W, b, y (references), W in the compute dtype,
                                                             if that is another one, and p of the last chunk
                    z ─ dropped  z ─ dropped  z ─ p kept
        backward    p recomputed p recomputed p reused       in reverse order, so that the kept p is used and freed
                                                             before another chunk is computed

    So a micro-batch of one chunk computes nothing twice, and the peak memory does not grow with the number of
    positions. A soft cap recomputes the last chunk too, because transform'(x) needs its logits.
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
        """Takes states [positions, size] in the compute dtype, weight [vocabulary, size] and targets [positions]."""
        # Once, and not for each chunk, which would read and write the whole weight again.
        factors = weight.to(states.dtype), None if bias is None else bias.to(states.dtype)
        ctx.save_for_backward(states, weight, bias, targets, *factors)
        ctx.set_materialize_grads(False)  # a loss without an entropy term does not compute its gradient
        ctx.distribution, ctx.transform = distribution, transform
        logprobs, entropies = [], []
        for rows in _slices(len(targets), CHUNK):
            logits = transform.apply_(_products(states[rows], *factors))  # [CHUNK, vocabulary], float32
            logits = distribution.apply_(logits, keep=targets[rows])
            target_logits = logits.gather(1, targets[rows, None])[:, 0]
            top = logits.amax(dim=1, keepdim=True)
            shifted = logits.sub_(top).clamp_(min=MASKED_LOGIT)
            weights = shifted.exp()  # unnormalised probabilities
            total = weights.sum(dim=1)
            logprobs.append(target_logits - top[:, 0] - total.log())
            # In place, because the logits are not needed again.
            entropies.append(total.log() - shifted.mul_(weights).sum(dim=1) / total)
        keeps = any(ctx.needs_input_grad) and transform.softcap is None
        ctx.last_probabilities = weights.div_(total[:, None]) if keeps else None
        return torch.cat(logprobs), torch.cat(entropies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of states, weight and bias, by the formulas of the class."""
        states, weight, bias, targets, *factors = ctx.saved_tensors
        logprobs_gradient, entropies_gradient = gradients
        if logprobs_gradient is None:
            logprobs_gradient = torch.zeros(len(targets), device=states.device)
        learns_weight, learns_bias = ctx.needs_input_grad[1], bias is not None and ctx.needs_input_grad[2]
        states_gradient = torch.empty_like(states)
        # Straight into `.grad` where there is one: a gradient of its own would be as large as the weight.
        adds_to_grad = learns_weight and weight.grad is not None
        weight_gradient = weight.grad if adds_to_grad else None
        if learns_weight and not adds_to_grad:
            weight_gradient = torch.zeros_like(weight, dtype=torch.float32)
        bias_gradient = torch.zeros_like(bias, dtype=torch.float32) if learns_bias else None
        for rows in reversed(_slices(len(targets), CHUNK)):
            probabilities, ctx.last_probabilities = ctx.last_probabilities, None
            slope: Tensor | float = ctx.transform.scale
            if probabilities is None:
                logits = ctx.transform.apply_(_products(states[rows], *factors))
                slope = ctx.transform.slope(logits)
                logits = ctx.distribution.apply_(logits, keep=targets[rows])
                probabilities = logits.sub_(logits.logsumexp(dim=1, keepdim=True)).exp_()
            upstream = logprobs_gradient[rows, None].float()  # [CHUNK, 1]
            by_entropy = None
            if entropies_gradient is not None:
                by_entropy = _entropy_gradient(probabilities).mul_(entropies_gradient[rows, None])
            by_logits = probabilities.mul_(-upstream).scatter_add_(1, targets[rows, None], upstream)
            if by_entropy is not None:
                by_logits.add_(by_entropy)
            by_products = by_logits.div_(ctx.distribution.divisor).mul_(slope)  # [CHUNK, vocabulary]
            compact = by_products.to(states.dtype)
            states_gradient[rows] = sum(
                product(compact[:, part], factors[0][part].t()) for part in _slices(len(weight), COLUMNS)
            )
            if weight_gradient is not None:
                weight_gradient.addmm_(compact.float().t(), states[rows].float())
            if bias_gradient is not None:
                bias_gradient += by_products.sum(dim=0)
        if weight_gradient is not None:
            weight_gradient = None if adds_to_grad else weight_gradient.to(weight.dtype)
        return states_gradient, weight_gradient, bias_gradient, None, None, None


def _entropy_gradient(probabilities: Tensor) -> Tensor:
    """∂entropy/∂z = −p · (log p + entropy) [CHUNK, vocabulary]; 0 for truncated ids."""
    logs = probabilities.clamp(min=1e-38).log_()
    entropies = -(probabilities * logs).sum(dim=1, keepdim=True)
    return logs.add_(entropies).mul_(probabilities).neg_()


def _products(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x = h Wᵀ + b [positions, vocabulary], multiplied in the dtype of the states, as the sampler does."""
    products = states.new_empty((len(states), len(weight)), dtype=torch.float32)
    for part in _slices(len(weight), COLUMNS):
        products[:, part] = product(states, weight[part], None if bias is None else bias[part])
    return products


def _slices(count: int, size: int) -> list[slice]:
    # At least one slice, even if it is empty: a micro-batch may have no action token.
    return [slice(start, start + size) for start in range(0, max(count, 1), size)]
