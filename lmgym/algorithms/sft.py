"""Supervised fine-tuning on worked solutions: a baseline to compare with, and a warm start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.learning.batch import Batch
from lmgym.losses import per_token, policy_gradient
from lmgym.models.distribution import FULL_SOFTMAX
from lmgym.models.token_scorer import Scores
from lmgym.policies.expert_policy import ExpertPolicy
from lmgym.policies.llm_policy import LLMPolicy


@dataclass
class SFTConfig(RLConfig):
    """SFT: the same loop, in which the worked solutions are the actions."""

    is_off_policy: ClassVar[bool] = True

    problems_per_iteration: int = 64
    """Worked solutions per optimiser step."""
    group_size: int = 1
    """Episodes per problem; a worked solution is always the same, so one is enough."""


class SFT(RLAlgorithm):
    """Maximum likelihood of worked solutions at temperature 1; the reward says whether the solutions are right."""

    Config: ClassVar[type[RLConfig]] = SFTConfig
    config: SFTConfig

    def setup(self, ref_policy: LLMPolicy | None) -> None:
        """The expert acts; the likelihood is that of the full softmax, whatever the policy samples from."""
        self.actor = ExpertPolicy(self.policy)
        self.learner.settings = replace(self.learner.settings, distribution=FULL_SOFTMAX)

    def advantages(self, batch: Batch) -> Tensor:
        """1 for every action token."""
        return batch.mask.float()

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """The mean negative log-likelihood per token."""
        return per_token(policy_gradient(scores.logprobs, batch.advantages), batch)
