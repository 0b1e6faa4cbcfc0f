"""Objectives and loss averages: pure functions of log-probabilities [episodes, length], a paper each."""

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


def importance_weights(logprobs: Tensor, behaviour: Tensor, cap: float) -> Tensor:
    """Ratios π / π_behaviour, truncated at `cap` and constant for the gradient; all 1 if the cap is 0.

    Truncated importance sampling (Ionides, 2008): bounded variance for a small bias towards the sampler.
    """
    if not cap:
        return torch.ones_like(logprobs)
    return (logprobs.detach() - behaviour).exp().clamp(max=cap)


def weighted_policy_gradient(logprobs: Tensor, batch: Batch, tis_cap: float) -> Tensor:
    """REINFORCE with truncated importance weights π / π_sampler; with a cap of 0, REINFORCE itself."""
    return importance_weights(logprobs, batch.logprobs, tis_cap) * policy_gradient(logprobs, batch.advantages)


def old_logprobs(logprobs: Tensor, batch: Batch) -> Tensor:
    """The denominator of PPO's ratios; for on-policy episodes the learner's own log-probs, so that ratios begin at 1.

    The sampler's log-probs differ from the learner's by rounding, in bfloat16 by more than a narrow clip range allows.
    That difference is corrected separately, by importance weights of `old` against the sampler.
    """
    return torch.where(batch.on_policy[:, None], logprobs.detach(), batch.old_logprobs)


def token_ratios(logprobs: Tensor, old: Tensor) -> Tensor:
    """PPO's ratios π / π_old [episodes, length], with their gradient."""
    return (logprobs - old).exp()


def sequence_ratios(logprobs: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """The geometric mean of an episode's token ratios, on each of its tokens (GSPO, https://arxiv.org/abs/2507.18071)."""
    change = ((logprobs - old) * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return change.exp().expand_as(logprobs)


def clipped(ratios: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """PPO's clipped surrogate: no gradient once a ratio has left [1 − low, 1 + high] in the advantage's direction.

    Schulman et al., 2017, https://arxiv.org/abs/1707.06347; a larger `high` is DAPO's clip-higher.
    """
    return -torch.minimum(ratios * advantages, ratios.clamp(1 - low, 1 + high) * advantages)


def clipped_surrogate(logprobs: Tensor, batch: Batch, low: float, high: float, tis_cap: float) -> Tensor:
    """PPO's clipped surrogate of each token, with truncated importance weights π_old / π_sampler."""
    old = old_logprobs(logprobs, batch)
    values = clipped(token_ratios(logprobs, old), batch.advantages, low, high)
    return importance_weights(old, batch.logprobs, tis_cap) * values


def soft_gated(ratios: Tensor, advantages: Tensor, positive: float, negative: float) -> Tensor:
    """SAPO: a sigmoid gate in place of the clip; its slope is 1 on policy and decays on both sides.

    The temperatures τ are for positive and for negative advantages (https://arxiv.org/abs/2511.20347).
    """
    temperature = torch.where(advantages > 0, positive, negative)
    return -(temperature * (ratios - 1)).sigmoid() * 4 / temperature * advantages


def preference(logprobs: Tensor, batch: Batch, beta: float) -> Tensor:
    """DPO: the mean over pairs of −log σ(β · margin); advantages mark the preferred episode by +1, the other by −1.

    The margin is how much more the log-probability of the preferred episode has risen over the reference
    (Rafailov et al., 2023, https://arxiv.org/abs/2305.18290).
    """
    rise = ((logprobs - batch.reference_logprobs) * batch.mask).sum(dim=1)
    sign = batch.advantages.sum(dim=1).sign()
    pair = batch.group.unique(return_inverse=True)[1]
    margins = rise.new_zeros(int(pair.max()) + 1).index_add_(0, pair, sign * rise)
    return -torch.nn.functional.logsigmoid(beta * margins).sum() / (batch.total_episodes / 2)


def clipped_value_error(values: Tensor, old: Tensor, targets: Tensor, clip: float) -> Tensor:
    """PPO's value loss: half the squared error; no gradient once a value has moved by `clip` towards its target."""
    clipped_values = old + (values - old).clamp(-clip, clip) if clip else values
    return torch.maximum((values - targets).square(), (clipped_values - targets).square()) / 2


def kl_estimate(logprobs: Tensor, reference: Tensor, estimator: KLEstimator) -> Tensor:
    """Per-token estimate of KL(policy ‖ reference) from the policy's own samples (http://joschu.net/blog/kl-approx.html).

    k1 is unbiased, k2 biased with less variance, k3 unbiased and never negative.
    """
    ratio = logprobs - reference
    estimates = {"k1": lambda: ratio, "k2": lambda: ratio.square() / 2, "k3": lambda: ratio.neg().expm1() + ratio}
    return estimates[estimator]()


def kl_penalty(logprobs: Tensor, reference: Tensor, estimator: KLEstimator) -> Tensor:
    """A loss whose value is the chosen estimate and whose gradient is that of the KL itself.

    Differentiating k1 gives zero in expectation, and differentiating k3 gives the gradient of KL(reference ‖ policy).
    With the score-function term that both omit, the gradient of each is (log p − log q) ∇ log p, as it is for k2.
    """
    value = kl_estimate(logprobs, reference, estimator).detach()
    score = (logprobs - reference).detach() * logprobs
    return value + (score - score.detach())


def adapted_coefficient(coefficient: float, measured: float, target: float) -> float:
    """The KL coefficient, changed by at most 10 % to move the measured KL to its target.

    After Ziegler et al., 2019, https://arxiv.org/abs/1909.08593.
    """
    error = min(max(measured / target - 1, -1.0), 1.0)
    return coefficient * (1 + 0.1 * error)


def per_token(values: Tensor, batch: Batch) -> Tensor:
    """The mean over all action tokens of the optimiser step: long episodes have more weight."""
    return (values * batch.mask).sum() / batch.total_tokens


def per_episode(values: Tensor, batch: Batch) -> Tensor:
    """The mean over episodes of each one's token mean: every episode has the same weight."""
    counts = batch.mask.sum(dim=1).clamp(min=1)
    return ((values * batch.mask).sum(dim=1) / counts).sum() / batch.total_episodes


def per_constant(values: Tensor, batch: Batch) -> Tensor:
    """The sum over tokens divided by the maximum episode length: unbiased, independent of the length.

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
    """The mean where the mask is True, or 0 if it is all False."""
    return float(values[mask].mean()) if bool(mask.any()) else 0.0


def masked_quantile(values: Tensor, mask: Tensor, share: float) -> float:
    """The quantile where the mask is True, or 0 if it is all False."""
    inside = values[mask].sort().values
    return float(inside[min(int(share * len(inside)), len(inside) - 1)]) if len(inside) else 0.0


def masked_max(values: Tensor, mask: Tensor) -> float:
    """The largest value where the mask is True, or 0 if it is all False."""
    return float(values[mask].max()) if bool(mask.any()) else 0.0
