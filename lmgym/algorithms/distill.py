"""Distillation from a teacher, on the student's samples or the teacher's, alone or mixed with the reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from lmgym.advantages import over_group
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.parts import KL, AdvantageNorm, TruncatedImportanceSampling
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.learning.reference import check_tokenizer
from lmgym.losses import per_token, policy_gradient, weighted_policy_gradient
from lmgym.models.token_scorer import Scores
from lmgym.policies.llm_policy import LLMPolicy


@dataclass
class DistillConfig(RLConfig):
    """Distillation: the teacher is the reference, and the KL to it is the objective."""

    teacher: str = ""
    """The teacher model, named as --model is; it must have the same tokenizer."""
    samples: Literal["student", "teacher"] = "student"
    """student: reverse KL on the student's own samples; teacher: maximum likelihood of the teacher's samples."""
    reward_coeff: float = 0.0
    """Coefficient of the reward, minus the group's mean, beside the teacher."""
    kl: KL = KL(kl_coeff=1.0)
    norm: AdvantageNorm = AdvantageNorm("none")
    importance: TruncatedImportanceSampling = TruncatedImportanceSampling(0.0)

    def corrects_stale_episodes(self) -> bool:
        """The teacher's samples need no correction."""
        return self.samples == "teacher" or super().corrects_stale_episodes()

    def check(self) -> None:
        """Also refuses what would leave nothing to learn, or overwrite the teacher."""
        super().check()
        if self.kl.update_reference_every:
            raise UserError("a teacher is not updated from its student: leave --update_reference_every out.")
        if self.reward_coeff and self.group_size == 1:
            raise UserError("the reward is compared within groups: with --reward_coeff give --group_size 2 or more.")
        unused = self.norm.advantage_norm != "none" or self.kl.kl_target or self.kl.in_reward or self.importance.tis_cap
        if self.samples == "teacher" and unused:
            raise UserError(
                "with --samples teacher there is neither a KL nor an advantage to normalise: leave --advantage_norm, "
                "--kl_target, --kl_place and --tis_cap out."
            )
        if self.samples == "student" and not (self.kl.kl_coeff or self.reward_coeff):
            raise UserError("--kl_coeff 0 and --reward_coeff 0 leave nothing to learn.")


class Distill(RLAlgorithm):
    """On-policy distillation is a KL penalty without a reward (https://arxiv.org/abs/2306.13649). Average: per token.

    The KL is estimated from the sampled tokens alone, where the paper sums over the vocabulary.
    """

    Config: ClassVar[type[RLConfig]] = DistillConfig
    can_shard: ClassVar[bool] = False
    config: DistillConfig
    learns_from_reference: ClassVar[bool] = True

    def setup(self, ref_policy: LLMPolicy | None) -> None:
        """The teacher is the reference of the KL, or samples the episodes."""
        if ref_policy is None:
            raise UserError("distill needs a teacher: name it with --teacher.")
        if self.config.samples == "student":
            super().setup(ref_policy)
            return
        check_tokenizer(ref_policy.model, self.policy.model)
        self.actor = self.policy.with_model(ref_policy.model)

    def advantages(self, batch: Batch) -> Tensor:
        """The normalised reward times its coefficient, less a KL in the reward; plus 1 on the teacher's samples.

        The coefficient comes after the normalisation, which would cancel it, and the KL is not normalised: it is the
        objective.
        """
        config = self.config
        rewards = config.norm.apply(batch.at_every_token(over_group(batch.returns, batch.group)), batch)
        advantages = config.reward_coeff * rewards - config.kl.to_go(batch)
        return advantages + batch.mask if config.samples == "teacher" else advantages

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """The KL to the teacher and the policy gradient of the reward; on the teacher's samples their likelihood."""
        if self.config.samples == "teacher":
            return per_token(policy_gradient(scores.logprobs, batch.advantages), batch)
        cap = self.config.importance.tis_cap
        values = weighted_policy_gradient(scores.logprobs, batch, cap)
        return per_token(values + self.config.kl.penalty(scores, batch, cap), batch)
