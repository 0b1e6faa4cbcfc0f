"""DPO on pairs that the reference sampled: offline preference optimisation (Rafailov et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmgym.advantages import best_against_worst
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.parts import KLPenalty
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.losses import preference
from lmgym.models.token_scorer import Scores
from lmgym.policies.llm_policy import LLMPolicy


@dataclass
class DPOConfig(RLConfig):
    """DPO on pairs of episodes that the reference sampled, under LoRA the base model; --kl_coeff is the β of DPO."""

    compares_groups: ClassVar[bool] = True
    is_off_policy: ClassVar[bool] = True

    kl: KLPenalty = KLPenalty(kl_coeff=0.1)

    def check(self) -> None:
        """Also refuses a β of 0, and a reference that is updated: its earlier samples would be off-policy for it."""
        super().check()
        if not self.kl.kl_coeff:
            raise UserError("--kl_coeff is the β of dpo: it must be above 0.")
        if self.kl.update_reference_every:
            raise UserError("dpo's reference is fixed: leave --update_reference_every out, or use online-dpo.")


class DPO(RLAlgorithm):
    """One pair of each group whose returns differ (https://arxiv.org/abs/2305.18290)."""

    Config: ClassVar[type[RLConfig]] = DPOConfig
    can_shard: ClassVar[bool] = False
    config: DPOConfig
    compares_episodes: ClassVar[bool] = True

    def setup(self, ref_policy: LLMPolicy | None) -> None:
        """The reference samples the episodes."""
        super().setup(ref_policy)
        assert self.reference is not None
        self.actor = self.policy.with_model(self.reference.acting_model())

    def advantages(self, batch: Batch) -> Tensor:
        """+1 for the preferred episode, −1 for the other."""
        return batch.at_every_token(best_against_worst(batch.returns, batch.group, batch.seed))

    def select_for_update(self, batch: Batch) -> Batch:
        """Only the pairs, which alone count in the average."""
        return batch.select(torch.nonzero(batch.advantages.sum(dim=1))[:, 0]).recounted()

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """−log σ(β · margin), the mean over pairs."""
        return preference(scores.logprobs, batch, self.config.kl.kl_coeff)
