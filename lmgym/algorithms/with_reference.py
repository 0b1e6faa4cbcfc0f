"""What algorithms with a reference policy share: who it is, when it is asked, when it catches up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.envs.env import Env
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.learning.learner import Update
from lmgym.learning.reference import Reference, make_reference
from lmgym.losses import kl_estimate, masked_mean
from lmgym.policies.llm_policy import LLMPolicy
from lmgym.runs.checkpoint import Companion
from lmgym.runs.run import Run


@dataclass
class WithReferenceConfig(RLConfig):
    """How strongly, and to whom, the policy is held."""

    kl_coeff: float = 0.0
    """How strongly the policy is held to the reference; 0 computes no reference at all. With --top_k or --top_p the
    reference keeps each sampled token even where its own cut would not, so the KL is only near to one."""
    update_reference_every: int = 0
    """Let the reference catch up with the policy after every so many iterations; 0 is never."""

    def check(self) -> None:
        """Also refuses a reference that nobody asks."""
        super().check()
        if self.update_reference_every and not self.kl_coeff:
            raise UserError("--update_reference_every moves a reference that nothing is held to: give --kl_coeff.")


class WithReference(RLAlgorithm):
    """Fills in the reference's log-probabilities of every episode, so that the KL is measured on all of them."""

    Config: ClassVar[type[RLConfig]] = WithReferenceConfig
    config: WithReferenceConfig

    def __init__(
        self,
        policy: LLMPolicy,
        env: Env,
        config: WithReferenceConfig | None = None,
        eval_env: Env | None = None,
        run: Run | None = None,
        ref_policy: LLMPolicy | None = None,
    ) -> None:
        super().__init__(policy, env, config, eval_env, run)
        self.reference: Reference | None = None
        if ref_policy and policy.model.has_lora and self.config.update_reference_every:
            raise UserError(
                "a reference of its own cannot follow a LoRA policy; leave the reference out (under LoRA the base "
                "model serves as one), or set --update_reference_every 0."
            )
        if ref_policy and self.config.update_reference_every and not ref_policy.model.has_shape_of(policy.model):
            raise UserError(
                f"{ref_policy.model.name} has other weights than {policy.model.name}, so it cannot catch up with it: "
                "leave --update_reference_every out."
            )
        if self.config.kl_coeff and policy.distribution.is_truncated:
            self.run.warn(
                "under --top_k or --top_p the KL to the reference is only near to one: the reference keeps each "
                "sampled token, even where its own cut would not."
            )
        if self.config.kl_coeff:
            self.reference = make_reference(policy.model, ref_policy.model if ref_policy else None)

    def prepare(self, batch: Batch) -> Batch:
        """Lets the reference catch up when it is time, and asks it about every episode."""
        if self.reference is None:
            return batch
        every = self.config.update_reference_every
        if every and self.iteration and self.iteration % every == 0:
            self.reference.refresh()
        return batch.with_(reference_logprobs=self.reference.logprobs(self.learner, batch))

    def describe(self, update: Update, batch: Batch, everybody: Batch) -> dict[str, float]:
        """Adds the distance from the reference over all fresh episodes; where none are, over those that were computed.

        Of a fresh episode that was not computed, the sampler's log-probabilities are the policy's own.
        """
        metrics = super().describe(update, batch, everybody)
        if self.reference is None:
            return metrics
        measured, logprobs = batch, update.logprobs
        if bool(everybody.fresh.any()):
            measured = everybody.select(everybody.fresh)
            logprobs = everybody.logprobs.index_copy(0, batch.row, update.logprobs)[everybody.fresh]
        metrics["kl"] = masked_mean(kl_estimate(logprobs, measured.reference_logprobs, "k3"), measured.mask)
        return metrics

    def companions(self) -> dict[str, Companion]:
        """The reference goes into the checkpoint."""
        return {} if self.reference is None else {"reference": self.reference}
