"""Distillation: from a teacher, on the student's own samples or on the teacher's, alone or mixed with the reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from lmgym.advantages import over_group
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from lmgym.envs.env import Env
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.policies.llm_policy import LLMPolicy
from lmgym.run import Run


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
    kl_on_silent_groups: bool = True
    """The teacher has something to say about every episode."""


class Distill(PolicyGradient):
    """On-policy distillation is a KL penalty without a reward (https://arxiv.org/abs/2306.13649)."""

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
        super().__init__(policy, env, config, eval_env, run, ref_policy)
        if self.config.samples == "teacher":
            self.actor, self.reference = self.policy.stranger(ref_policy.model), None

    def credit(self, batch: Batch) -> Tensor:
        """The reward, as far as it counts, and 1 for each token that the teacher wrote."""
        imitation = 1.0 if self.config.samples == "teacher" else 0.0
        earned = self.config.reward_coeff * over_group(batch.returns, batch.group)
        return batch.at_every_token(earned + imitation)
