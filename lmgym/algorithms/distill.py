"""Distillation: from a teacher, on the student's own samples or on the teacher's, alone or mixed with the reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lmgym.advantages import NOTHING, over_group
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.policy_gradient import NORMALISATIONS, PolicyGradient, PolicyGradientConfig
from lmgym.envs.env import Env
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.learning.reference import check_tokenizer
from lmgym.policies.llm_policy import LLMPolicy
from lmgym.runs.run import Run


@dataclass
class DistillConfig(PolicyGradientConfig):
    """Distillation: the teacher is the reference, and the KL to it is what is learnt."""

    teacher: str = ""
    """The model to learn from, named as --model is; it must have the same tokenizer."""
    samples: Literal["student", "teacher"] = "student"
    """student: reverse KL, token by token, on what the student wrote; teacher: imitate what the teacher wrote."""
    kl_coeff: float = 1.0
    """How much the teacher counts."""
    reward_coeff: float = 0.0
    """How much the reward over the group's mean counts beside the teacher."""

    def corrects_old_episodes(self) -> bool:
        """What the teacher wrote is imitated as it is, however old."""
        return self.samples == "teacher" or super().corrects_old_episodes()

    def check(self) -> None:
        """Also refuses what would leave nothing to learn, or overwrite the teacher."""
        super().check()
        if self.update_reference_every:
            raise UserError("a teacher does not follow its student: leave --update_reference_every out.")
        if self.reward_coeff and self.parts_groups:
            raise UserError(
                "the reward is compared within groups: with --reward_coeff give --group_size 2 or more, and replay "
                "whole groups."
            )
        if self.samples == "student" and not (self.reward_coeff or self.kl_on_silent_groups):
            raise UserError("without --reward_coeff every group is silent: leave --no_kl_on_silent_groups out.")
        if self.samples == "teacher" and (self.normalisation != "none" or self.kl_target):
            raise UserError("with --samples teacher there is neither a KL nor an advantage to normalise.")
        if self.samples == "student" and not (self.kl_coeff or self.reward_coeff):
            raise UserError("--kl_coeff 0 and --reward_coeff 0 leave nothing to learn.")


class Distill(PolicyGradient):
    """On-policy distillation is a KL penalty without a reward (https://arxiv.org/abs/2306.13649).

    The KL is estimated from the sampled tokens alone, where the paper sums over the vocabulary.
    """

    Config: ClassVar[type[RLConfig]] = DistillConfig
    config: DistillConfig

    def __init__(
        self,
        policy: LLMPolicy,
        env: Env,
        config: DistillConfig | None = None,
        eval_env: Env | None = None,
        run: Run | None = None,
        ref_policy: LLMPolicy | None = None,
    ) -> None:
        if ref_policy is None:
            raise UserError("distill needs a teacher: name it with --teacher.")
        check_tokenizer(ref_policy.model, policy.model)
        super().__init__(policy, env, config, eval_env, run, ref_policy)
        if self.config.samples == "teacher":
            self.actor, self.reference = self.policy.with_model(ref_policy.model), None

    def weights(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """What the teacher wrote needs no correction: it is imitated, not improved upon."""
        return torch.ones_like(logprobs) if self.config.samples == "teacher" else super().weights(logprobs, batch)

    def has_signal(self, batch: Batch) -> bool:
        """The teacher has something to say about every episode."""
        return bool(self.config.kl_coeff) or bool((batch.advantages.abs() > NOTHING).any())

    def credit(self, batch: Batch) -> Tensor:
        """The reward over the group's mean."""
        return batch.at_every_token(over_group(batch.returns, batch.group))

    def advantages(self, batch: Batch) -> Tensor:
        """The normalised reward, as far as it counts, less a KL in the reward; 1 for each token that a teacher wrote.

        The coefficient comes after the normalisation, which would cancel it, and the KL is not normalised: it is what
        is learnt.
        """
        normalise = NORMALISATIONS[self.config.normalisation]
        earned = normalise(self.credit(batch), torch.zeros_like(batch.logprobs), batch.group, batch.mask)
        imitation = batch.mask.to(earned.dtype) if self.config.samples == "teacher" else 0.0
        return self.config.reward_coeff * earned + imitation - self.kl_in_reward(batch)
