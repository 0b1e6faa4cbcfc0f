"""Credit: pure functions from rewards [episodes, steps] to how much each step was better than expected."""

from __future__ import annotations

import torch
from torch import Tensor


def discounted_returns(rewards: Tensor, discount: float) -> Tensor:
    """The return of each step: its reward and, discounted once per step, all that follow (Sutton & Barto, 3.8)."""
    returns = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[:, 0])
    for step in reversed(range(rewards.shape[1])):
        following = rewards[:, step] + discount * following
        returns[:, step] = following
    return returns


def group_baseline(returns: Tensor, step_count: Tensor, group: Tensor) -> Tensor:
    """The group's mean return from the same step on; an episode already over counts with its last step.

    With one reward at the end and no discount this is the group mean of GRPO without its division by the standard
    deviation (Liu et al., 2025, https://arxiv.org/abs/2503.20783).
    """
    steps = torch.arange(returns.shape[1], device=returns.device)
    held = returns.gather(1, torch.minimum(steps[None, :], step_count[:, None] - 1))
    groups = int(group.max()) + 1
    sums = returns.new_zeros(groups, returns.shape[1]).index_add_(0, group, held)
    sizes = returns.new_zeros(groups).index_add_(0, group, torch.ones_like(group, dtype=returns.dtype))
    return (sums / sizes[:, None])[group]


def batch_baseline(returns: Tensor, step_count: Tensor) -> Tensor:
    """The mean return of all real steps of the batch."""
    real = torch.arange(returns.shape[1], device=returns.device)[None, :] < step_count[:, None]
    return (returns * real).sum() / real.sum()


def token_returns(values: Tensor, step_index: Tensor, discount: float) -> Tensor:
    """For each token the sum of `values` [episodes, length] at later tokens, discounted once per step in between."""
    following = torch.zeros_like(values[:, 0])
    later = torch.zeros_like(values)
    reached = step_index.cummax(dim=1).values  # a reply, at -1, stands in the step before it
    for token in reversed(range(values.shape[1])):
        later[:, token] = following
        step = reached[:, token]
        before = reached[:, token - 1] if token else step
        enters_step = (before >= 0) & (step > before)
        following = (values[:, token] + following) * torch.where(enters_step, discount, 1.0)
    return later
