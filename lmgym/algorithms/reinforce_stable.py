"""REINFORCE made stable: held to a reference by a KL penalty, and corrected when it learns from older episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lmgym.advantages import token_returns
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.reinforce import Reinforce, ReinforceConfig
from lmgym.envs.env import Env
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.learning.learner import Update
from lmgym.learning.reference import make_reference
from lmgym.losses import (
    KLEstimator,
    importance_weights,
    kl_estimate,
    kl_penalty,
    masked_mean,
    per_token,
    policy_gradient,
)
from lmgym.policies.llm_policy import LLMPolicy
from lmgym.run import Run


@dataclass
class ReinforceStableConfig(ReinforceConfig):
    """REINFORCE with a reference policy, a KL penalty with the right gradient, and truncated importance ratios."""

    corrects_old_episodes: ClassVar[bool] = True

    kl_coeff: float = 0.01
    """How strongly the policy is held to the reference; 0 computes no reference at all."""
    kl_estimator: KLEstimator = "k3"
    """k1 (unbiased), k2 (biased) or k3 (unbiased, never negative); in the loss the gradient is right for all three."""
    kl_place: Literal["loss", "reward"] = "loss"
    """In the loss, a token answers for its own KL; in the reward, also for the estimated KL of what follows it."""
    kl_on_silent_groups: bool = False
    """Also hold groups without any advantage to the reference; every episode is then computed, not only those."""
    update_reference_every: int = 0
    """Let the reference catch up with the policy after every so many iterations; 0 is never."""
    max_ratio: float = 2.0
    """Importance ratios, which correct for learning again from older episodes, are cut here."""

    def check(self) -> None:
        """Also refuses the one pair of settings whose gradient would be biased."""
        super().check()
        if self.kl_place == "reward" and self.kl_estimator == "k2":
            raise UserError("k2 is a biased estimate of the KL to come: with --kl_place reward use k1 or k3.")


class ReinforceStable(Reinforce):
    """Credit: returns over a baseline. Objective: ratio · advantage · log-probability, less the KL."""

    Config: ClassVar[type[RLConfig]] = ReinforceStableConfig
    config: ReinforceStableConfig

    def __init__(
        self,
        policy: LLMPolicy,
        env: Env,
        config: ReinforceStableConfig | None = None,
        eval_env: Env | None = None,
        run: Run | None = None,
        ref_policy: LLMPolicy | None = None,
    ) -> None:
        super().__init__(policy, env, config, eval_env, run)
        self.reference = None
        if ref_policy and policy.model.has_lora and self.config.update_reference_every:
            raise UserError(
                "a reference of its own cannot follow a LoRA policy; leave the reference out (under LoRA the base "
                "model serves as one), or set --update_reference_every 0."
            )
        if self.config.kl_coeff:
            self.reference = make_reference(policy.model, ref_policy.model if ref_policy else None)

    def prepare(self, batch: Batch) -> Batch:
        """Lets the reference catch up when it is time, and asks it about the tokens that are held to it."""
        if self.reference is None:
            return batch
        every = self.config.update_reference_every
        if every and self.iteration and self.iteration % every == 0:
            self.reference.refresh()
        rows = self._rows_to_hold(batch)
        logprobs = torch.zeros(batch.mask.shape)
        if len(rows):
            logprobs[rows] = self.reference.logprobs(self.learner, batch.select(rows))
        return batch.with_(reference_logprobs=logprobs)

    def _rows_to_hold(self, batch: Batch) -> Tensor:
        """The episodes with a KL; in the reward it is part of everybody's advantage."""
        if self.config.kl_on_silent_groups or self.config.kl_place == "reward":
            return torch.arange(len(batch))
        return torch.nonzero(super().advantages(batch).abs().sum(dim=1))[:, 0]

    def advantages(self, batch: Batch) -> Tensor:
        """Returns over the baseline; with the KL in the reward, less the KL of this token and of those after it.

        A token's own term must be log p − log q for the gradient to be that of the KL; for later tokens any unbiased
        estimate of theirs will do, and k3 has the least variance.
        """
        advantages = super().advantages(batch)
        if self.config.kl_place == "loss" or self.reference is None:
            return advantages
        own = (batch.logprobs - batch.reference_logprobs) * batch.mask
        estimates = kl_estimate(batch.logprobs, batch.reference_logprobs, self.config.kl_estimator) * batch.mask
        following = token_returns(estimates, batch.step_index, self.config.discount)
        return advantages - self.config.kl_coeff * (own + following) * batch.mask

    def loss(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """The mean over tokens, every one weighted by how much likelier it is now than when it was sampled."""
        values = policy_gradient(logprobs, batch.advantages)
        if self.config.kl_place == "loss" and self.reference is not None:
            penalty = kl_penalty(logprobs, batch.reference_logprobs, self.config.kl_estimator)
            values = values + self.config.kl_coeff * penalty
        return per_token(importance_weights(logprobs, batch.logprobs, self.config.max_ratio) * values, batch)

    def rows_to_learn(self, batch: Batch) -> Tensor:
        """Those with an advantage or a KL."""
        return super().rows_to_learn(batch) if self.reference is None else self._rows_to_hold(batch)

    def describe(self, update: Update, batch: Batch) -> dict[str, float]:
        """Adds the distance from the reference."""
        metrics = super().describe(update, batch)
        if self.reference is not None:
            metrics["kl"] = masked_mean(kl_estimate(update.logprobs, batch.reference_logprobs, "k3"), batch.mask)
        return metrics
