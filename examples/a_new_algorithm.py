"""A new algorithm in ten lines: REINFORCE with a leave-one-out baseline.

lmgym train examples.a_new_algorithm:LeaveOneOut --iterations 3
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.learning.batch import Batch
from lmgym.losses import per_token, policy_gradient
from lmgym.models.token_scorer import Scores


class LeaveOneOut(RLAlgorithm):
    """RLOO: an episode is compared with the mean of the others of its group (https://arxiv.org/abs/2402.14740)."""

    def advantages(self, batch: Batch) -> Tensor:
        rewards = batch.rewards.sum(dim=1)
        same = (batch.group[:, None] == batch.group[None, :]) & ~torch.eye(len(batch), dtype=torch.bool)
        others = (same * rewards).sum(dim=1) / same.sum(dim=1).clamp(min=1)
        return (rewards - others)[:, None] * batch.mask

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        return per_token(policy_gradient(scores.logprobs, batch.advantages), batch)
