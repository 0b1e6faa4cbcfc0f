"""Expert iteration: sample, keep the successes, fine-tune on them, and sample again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmgym.advantages import best_of_group
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.learning.batch import Batch
from lmgym.learning.initial_weights import InitialWeights
from lmgym.losses import per_token, policy_gradient
from lmgym.models.token_scorer import Scores
from lmgym.policies.llm_policy import LLMPolicy


@dataclass
class ExpertIterationConfig(RLConfig):
    """Expert iteration, as in RAFT, best-of-n and, with --restart, STaR."""

    is_off_policy: ClassVar[bool] = True

    keep: int = 0
    """Keep this many of the best episodes of each group with a reward above 0; 0: all of those."""
    restart: bool = False
    """Start each iteration from the initial weights, as STaR does; use dozens of --updates_per_iteration."""

    @property
    def optimiser_steps(self) -> int:
        """With a restart the schedule spans one iteration, not the run."""
        return self.updates_per_iteration if self.restart else super().optimiser_steps


class ExpertIteration(RLAlgorithm):
    """Fine-tuning on own successes (https://arxiv.org/abs/2203.14465, https://arxiv.org/abs/2304.06767)."""

    Config: ClassVar[type[RLConfig]] = ExpertIterationConfig
    can_shard: ClassVar[bool] = False
    config: ExpertIterationConfig
    initial_weights: InitialWeights | None = None

    def setup(self, ref_policy: LLMPolicy | None) -> None:
        """Keeps the initial weights where each iteration restarts from them."""
        if self.config.restart:
            self.initial_weights = self.auxiliary_state["first"] = InitialWeights(self.learner)

    def prepare(self, batch: Batch) -> Batch:
        """Restarts from the initial weights, for which the episodes are off-policy."""
        if self.initial_weights is None:
            return batch
        self.initial_weights.restore()
        self.state.pop("schedule_step", None)  # every iteration has a schedule of its own
        self.state.pop("schedule_factor", None)
        return batch.with_(on_policy=torch.zeros_like(batch.on_policy))

    def advantages(self, batch: Batch) -> Tensor:
        """1 for episodes that are kept, 0 for the others."""
        kept = best_of_group(batch.returns, batch.group, self.config.keep or len(batch), batch.seed)
        return batch.at_every_token(kept)

    def select_for_update(self, batch: Batch) -> Batch:
        """Only the kept episodes, which alone count in the average."""
        return batch.select(torch.nonzero(batch.advantages.sum(dim=1))[:, 0]).recounted()

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """The mean negative log-likelihood per token."""
        return per_token(policy_gradient(scores.logprobs, batch.advantages), batch)
