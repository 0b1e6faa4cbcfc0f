"""Advantages: pure functions from rewards to how much better than expected an episode, a step or a token was."""

from __future__ import annotations

import torch
from torch import Tensor

from lmgym.losses import KLEstimator, kl_estimate

EPS = 1e-6
"""An advantage below this counts as 0: it is rounding error."""


def discounted_returns(rewards: Tensor, discount: float) -> Tensor:
    """The return of each step: its reward and, discounted once per step, all that follow (Sutton & Barto, 3.8)."""
    returns = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[:, 0])
    for step in reversed(range(rewards.shape[1])):
        following = rewards[:, step] + discount * following
        returns[:, step] = following
    return returns


def undiscounted_returns(rewards: Tensor) -> Tensor:
    """The return of each step [episodes, steps]: its reward and all that follow."""
    return discounted_returns(rewards, discount=1.0)


def group_baseline(returns: Tensor, step_count: Tensor, group: Tensor) -> Tensor:
    """The group's mean return from the same step on; an episode that has already ended counts with its last step.

    With one reward at the end and no discount this is the group mean of GRPO without its division by the standard
    deviation (Liu et al., 2025, https://arxiv.org/abs/2503.20783).
    """
    steps = torch.arange(returns.shape[1], device=returns.device)
    held = returns.gather(1, torch.minimum(steps[None, :], step_count[:, None] - 1))
    return group_mean(held, group)


def batch_baseline(returns: Tensor, step_count: Tensor) -> Tensor:
    """The mean return of all real steps of the batch."""
    real = torch.arange(returns.shape[1], device=returns.device)[None, :] < step_count[:, None]
    return (returns * real).sum() / real.sum()


def token_returns(values: Tensor, step_index: Tensor, discount: float) -> Tensor:
    """For each token the sum of `values` [episodes, length] at later tokens, discounted once per step in between."""
    following = torch.zeros_like(values[:, 0])
    later = torch.zeros_like(values)
    reached = step_index.cummax(dim=1).values  # reply tokens (-1) belong to the step before them
    for token in reversed(range(values.shape[1])):
        later[:, token] = following
        step = reached[:, token]
        before = reached[:, token - 1] if token else step
        enters_step = (before >= 0) & (step > before)
        following = (values[:, token] + following) * torch.where(enters_step, discount, 1.0)
    return later


def group_mean(returns: Tensor, group: Tensor) -> Tensor:
    """For each episode the mean of its group, of returns [episodes] or of anything with more dimensions."""
    sums, sizes = _group_sums(returns, group)
    return (sums / sizes.view(-1, *[1] * (returns.ndim - 1)))[group]


def over_group(returns: Tensor, group: Tensor) -> Tensor:
    """Returns minus their group's mean: GRPO before its division (Shao et al., 2024, https://arxiv.org/abs/2402.03300)."""
    return returns - group_mean(returns, group)


def leave_one_out(returns: Tensor, group: Tensor) -> Tensor:
    """Returns minus the mean of the *others* in the group: unbiased (Kool et al., 2019; Ahmadian et al., 2024)."""
    sums, sizes = _group_sums(returns, group)
    others = (sums[group] - returns) / (sizes[group] - 1).clamp(min=1)
    return torch.where(sizes[group] > 1, returns - others, 0.0)


def over_success_rate(returns: Tensor, group: Tensor) -> Tensor:
    """(r − r̄) / r̄ with the group mean r̄, and 0 where r̄ is 0: harder problems get more weight.

    For rewards of 0 or 1 the expected update of a group of N is that of Σ pass@k / k for k < N, the first terms
    of the series of log p (MaxRL; Tajwar et al., 2026, https://arxiv.org/abs/2602.02710).
    """
    mean = group_mean(returns, group)
    return torch.where(mean > 0, (returns - mean) / mean.clamp(min=1e-6), 0.0)


def best_of_group(returns: Tensor, group: Tensor, keep: int, seed: Tensor) -> Tensor:
    """1 for the `keep` best episodes of each group with a positive return, else 0; ties go to the lower seed."""
    return ((_rank_in_group(returns, group, seed) < keep) & (returns > 0)).to(returns.dtype)


def best_against_worst(returns: Tensor, group: Tensor, seed: Tensor) -> Tensor:
    """+1 for the best and −1 for the worst episode of each group whose returns differ, 0 for all others."""
    best, worst = (_rank_in_group(each, group, seed) == 0 for each in (returns, -returns))
    return best.to(returns.dtype) - worst.to(returns.dtype)  # 0 if all returns are equal: both are the same


def down_sampled(advantages: Tensor, group: Tensor, keep: int, seed: Tensor) -> Tensor:
    """Advantages [episodes, length] of at most `keep` episodes of each group, 0 for the others.

    Half of those kept had a positive advantage and half a negative one, where there are as many; the lower seeds are
    kept. Each stands for all of its sign in the group, so that the expected gradient is that of all episodes. Learning
    from a part of the rollouts is the idea of Xu et al., 2025, https://arxiv.org/abs/2504.13818, who choose by reward.
    """
    counts = (advantages.abs().amax(dim=1) > EPS).to(advantages.dtype)
    is_positive = advantages.sum(dim=1) >= 0
    stratum = 2 * group + is_positive
    size = _group_sums(counts, stratum)[0][stratum]
    of_other_sign = _group_sums(counts, group)[0][group] - size
    share = torch.where(is_positive, (keep + 1) // 2, keep // 2)
    kept = torch.minimum(size, torch.maximum(share, keep - of_other_sign))
    weight = (_rank_in_group(counts, stratum, seed) < kept) * counts * size / kept.clamp(min=1)
    return advantages * weight[:, None]


def _rank_in_group(returns: Tensor, group: Tensor, seed: Tensor) -> Tensor:
    """How many episodes of its group rank before each one: by return, then by seed, never by content."""
    equal = returns == returns[:, None]
    before = (returns > returns[:, None]) | (equal & (seed < seed[:, None]))
    same = equal & (seed == seed[:, None])
    return ((group[:, None] == group) & (before | same.tril(diagonal=-1))).sum(dim=1)


def divide_by_group_std(advantages: Tensor, group: Tensor, mask: Tensor) -> Tensor:
    """Advantages [episodes, length] divided by the standard deviation of their group, as in GRPO.

    The deviation is that of the episodes' mean advantage; a group whose advantages are all equal is not divided.
    """
    means = advantages.sum(dim=1) / mask.sum(dim=1).clamp(min=1)
    sums, sizes = _group_sums(over_group(means, group).square(), group)
    deviation = (sums / (sizes - 1).clamp(min=1)).sqrt()[group]
    return advantages / torch.where(deviation > EPS, deviation + 1e-4, 1.0)[:, None]


def standardise(advantages: Tensor, mask: Tensor) -> Tensor:
    """Advantages with mean 0 and deviation 1 over all action tokens of the batch (REINFORCE++).

    Hu, 2025, https://arxiv.org/abs/2501.03262.
    """
    action_tokens = advantages[mask]
    if len(action_tokens) < 2:
        return advantages
    return (advantages - action_tokens.mean()) / (action_tokens.std() + 1e-4) * mask


def informative_groups(advantages: Tensor, group: Tensor) -> Tensor:
    """[episodes] whether any episode of the group has a non-zero advantage [episodes, length]."""
    sums, _ = _group_sums((advantages.abs().amax(dim=1) > EPS).float(), group)
    return sums[group] > 0


def kl_to_go(
    logprobs: Tensor, reference: Tensor, mask: Tensor, step_index: Tensor, discount: float, estimator: KLEstimator
) -> Tensor:
    """[episodes, length] the KL of each token and, discounted once per step, of the tokens after it.

    A token's own term must be log p − log q for the gradient to be that of the KL; for later tokens any unbiased
    estimate will do, and k3 has the least variance.
    """
    own = (logprobs - reference) * mask
    later = token_returns(kl_estimate(logprobs, reference, estimator) * mask, step_index, discount)
    return (own + later) * mask


def generalised_advantages(
    rewards: Tensor, values: Tensor, last_values: Tensor, valid: Tensor, discount: float, gae_lambda: float
) -> Tensor:
    """GAE [episodes, positions] over the `valid` positions (Schulman et al., 2016, https://arxiv.org/abs/1506.02438).

    A position is a token or a step; `last_values` [episodes] is the value after the last valid one, 0 if terminated.
    """
    advantages = torch.zeros_like(values)
    following_value = last_values
    following = torch.zeros_like(values[:, 0])
    for position in reversed(range(values.shape[1])):
        td_error = rewards[:, position] + discount * following_value - values[:, position]
        advantage = td_error + discount * gae_lambda * following
        here = valid[:, position]
        advantages[:, position] = torch.where(here, advantage, 0.0)
        following = torch.where(here, advantage, following)
        following_value = torch.where(here, values[:, position], following_value)
    return advantages


def overlong_penalty(lengths: Tensor, soft: int, hard: int) -> Tensor:
    """0 up to `soft` tokens, −1 from `hard` on, and linear in between (DAPO, https://arxiv.org/abs/2503.14476)."""
    return -((lengths - soft) / max(hard - soft, 1)).clamp(0, 1)


def _group_sums(values: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of `values` and the number of episodes of each group."""
    groups = int(group.max()) + 1
    sums = values.new_zeros(groups, *values.shape[1:]).index_add_(0, group, values)
    sizes = values.new_zeros(groups).index_add_(0, group, torch.ones_like(group, dtype=values.dtype))
    return sums, sizes
