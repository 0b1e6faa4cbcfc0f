"""Objectives and averages: pure functions of log-probabilities [episodes, length], a paper each."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from lmgym.learning.batch import Batch

KLEstimator = Literal["k1", "k2", "k3"]


def policy_gradient(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """REINFORCE: its gradient is the advantage times that of the log-probability (Williams, 1992)."""
    return -advantages * logprobs


def importance_weights(logprobs: Tensor, behaviour: Tensor, largest: float) -> Tensor:
    """How much likelier a token is now than when it was sampled, truncated, and constant for the gradient.

    Truncated importance sampling (Ionides, 2008): bounded variance for a small bias towards the sampler.
    """
    return (logprobs.detach() - behaviour).exp().clamp(max=largest)


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


def per_token(values: Tensor, batch: Batch) -> Tensor:
    """The mean over all chosen tokens of the optimiser step: long episodes weigh more."""
    return (values * batch.mask).sum() / batch.total_tokens


def per_episode(values: Tensor, batch: Batch) -> Tensor:
    """The mean over episodes of each one's token mean: every episode weighs the same."""
    counts = batch.mask.sum(dim=1).clamp(min=1)
    return ((values * batch.mask).sum(dim=1) / counts).sum() / batch.total_episodes


def masked_mean(values: Tensor, mask: Tensor) -> float:
    """The mean where the mask is True, 0 where it is nowhere."""
    return float(values[mask].mean()) if bool(mask.any()) else 0.0


def masked_max(values: Tensor, mask: Tensor) -> float:
    """The largest value where the mask is True, 0 where it is nowhere."""
    return float(values[mask].max()) if bool(mask.any()) else 0.0
