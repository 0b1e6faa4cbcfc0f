"""Objectives and averages: pure functions of log-probabilities [episodes, length], a paper each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from lmgym.learning.batch import Batch

KLEstimator = Literal["k1", "k2", "k3"]


def policy_gradient(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """REINFORCE: its gradient is the advantage times that of the log-probability (Williams, 1992)."""
    return -advantages * logprobs


def importance_weights(logprobs: Tensor, behaviour: Tensor, largest: float) -> Tensor:
    """How much likelier a token is now than when it was sampled, truncated, and constant for the gradient; 0 is never.

    Truncated importance sampling (Ionides, 2008): bounded variance for a small bias towards the sampler.
    """
    if not largest:
        return torch.ones_like(logprobs)
    return (logprobs.detach() - behaviour).exp().clamp(max=largest)


def old_logprobs(logprobs: Tensor, batch: Batch) -> Tensor:
    """What ratios are taken against: of fresh episodes the learner's own log-probabilities, so that they begin at 1.

    The sampler's differ from those by rounding, in bfloat16 by more than a narrow clip allows; that difference is
    corrected for apart, by `sampler_weights`.
    """
    return torch.where(batch.fresh[:, None], logprobs.detach(), batch.old_logprobs)


def sampler_weights(old: Tensor, batch: Batch, largest: float) -> Tensor:
    """How much likelier a token was to the learner than to the sampler, truncated; 1 for older episodes, or if 0.

    Truncated importance sampling token by token (https://fengyao.notion.site/off-policy-rl): the probability of what
    came before a token is not corrected.
    """
    return importance_weights(old, batch.logprobs, largest)


def token_ratios(logprobs: Tensor, old: Tensor) -> Tensor:
    """How much likelier each token is now than it was, with its gradient."""
    return (logprobs - old).exp()


def sequence_ratios(logprobs: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """The geometric mean of an episode's token ratios, on each of its tokens (GSPO, https://arxiv.org/abs/2507.18071)."""
    change = ((logprobs - old) * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return change.exp().expand_as(logprobs)


def clipped(ratios: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """PPO: nothing more is gained where the ratio has left 1 − low … 1 + high in the advantage's direction.

    Schulman et al., 2017, https://arxiv.org/abs/1707.06347; a larger `high` is DAPO's clip-higher.
    """
    return -torch.minimum(ratios * advantages, ratios.clamp(1 - low, 1 + high) * advantages)


def soft_gated(ratios: Tensor, advantages: Tensor, rising: float, falling: float) -> Tensor:
    """SAPO: a sigmoid instead of a clip, whose slope is 1 on policy and fades on both sides.

    `rising` is its sharpness for good tokens and `falling` for bad ones (https://arxiv.org/abs/2511.20347).
    """
    sharpness = torch.where(advantages > 0, rising, falling)
    return -(sharpness * (ratios - 1)).sigmoid() * 4 / sharpness * advantages


def preference(margins: Tensor, strength: float) -> Tensor:
    """DPO: −log σ(strength · margin) of each pair (Rafailov et al., 2023, https://arxiv.org/abs/2305.18290)."""
    return -torch.nn.functional.logsigmoid(strength * margins)


def clipped_value_error(values: Tensor, old: Tensor, targets: Tensor, clip: float) -> Tensor:
    """Half the squared error of a value, which gains nothing by moving further than `clip` from what it was."""
    near = old + (values - old).clamp(-clip, clip) if clip else values
    return torch.maximum((values - targets).square(), (near - targets).square()) / 2


def kl_estimate(logprobs: Tensor, reference: Tensor, estimator: KLEstimator) -> Tensor:
    """Per-token estimate of KL(policy ‖ reference) from the policy's own samples (http://joschu.net/blog/kl-approx.html).

    k1 is unbiased, k2 biased with less variance, k3 unbiased and never negative.
    """
    ratio = logprobs - reference
    estimates = {"k1": lambda: ratio, "k2": lambda: ratio.square() / 2, "k3": lambda: ratio.neg().expm1() + ratio}
    return estimates[estimator]()


def kl_penalty(logprobs: Tensor, reference: Tensor, estimator: KLEstimator) -> Tensor:
    """A loss whose value is the chosen estimate and whose gradient is that of the KL itself.

    Differentiating k1 gives zero in expectation and differentiating k3 gives the gradient of the KL the other way
    round; adding the score-function term that both forget makes them, and k2 as it is, (log p − log q) ∇ log p.
    """
    value = kl_estimate(logprobs, reference, estimator).detach()
    score = (logprobs - reference).detach() * logprobs
    return value + (score - score.detach())


def adapted_coefficient(coefficient: float, measured: float, target: float) -> float:
    """A coefficient that follows the measured KL, by 10 % at most; after Ziegler et al., 2019 (arXiv 1909.08593)."""
    error = min(max(measured / target - 1, -1.0), 1.0)
    return coefficient * (1 + 0.1 * error)


def per_token(values: Tensor, batch: Batch) -> Tensor:
    """The mean over all chosen tokens of the optimiser step: long episodes weigh more."""
    return (values * batch.mask).sum() / batch.total_tokens


def per_episode(values: Tensor, batch: Batch) -> Tensor:
    """The mean over episodes of each one's token mean: every episode weighs the same."""
    counts = batch.mask.sum(dim=1).clamp(min=1)
    return ((values * batch.mask).sum(dim=1) / counts).sum() / batch.total_episodes


def per_constant(values: Tensor, batch: Batch) -> Tensor:
    """The sum over tokens by the length that an episode may have at most: unbiased, and no length is favoured.

    Dr. GRPO; Liu et al., 2025, https://arxiv.org/abs/2503.20783.
    """
    return (values * batch.mask).sum() / (batch.total_episodes * batch.length_limit)


Averaging = Literal["token", "episode", "constant"]

AVERAGES: dict[Averaging, Callable[[Tensor, Batch], Tensor]] = {
    "token": per_token,
    "episode": per_episode,
    "constant": per_constant,
}


def masked_mean(values: Tensor, mask: Tensor) -> float:
    """The mean where the mask is True, 0 where it is nowhere."""
    return float(values[mask].mean()) if bool(mask.any()) else 0.0


def masked_max(values: Tensor, mask: Tensor) -> float:
    """The largest value where the mask is True, 0 where it is nowhere."""
    return float(values[mask].max()) if bool(mask.any()) else 0.0
