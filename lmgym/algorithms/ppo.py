"""PPO: a critic says what to expect, GAE what came of it, and the clip how far to go (Schulman et al., 2017)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from lmgym.advantages import NOTHING, generalised_advantages
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.policy_gradient import Normalisation, PolicyGradient, PolicyGradientConfig
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.learning.critic import Critic, make_value_head
from lmgym.learning.learner import Learner, LearnerSettings, Update
from lmgym.losses import (
    AVERAGES,
    KLEstimator,
    clipped,
    clipped_value_error,
    old_logprobs,
    sampler_weights,
    token_ratios,
)
from lmgym.runs.checkpoint import Companion


@dataclass
class PPOConfig(PolicyGradientConfig):
    """PPO with a critic that is a head on the policy or a model of its own."""

    updates_per_iteration: int = 2
    """Passes over the batch per iteration."""
    minibatches: int = 1
    """Optimiser steps per pass: each pass deals the groups into so many minibatches, at random."""
    normalisation: Normalisation = "batch"
    """batch makes the advantages of all tokens one population."""
    clip: float = 0.2
    """A token's probability need not move further than this share of what it was."""
    max_sampler_ratio: float = 2.0
    """A token weighs as much as it was likelier to the learner than to the sampler, up to this; 0 is no correction."""
    critic: Literal["head", "model"] = "head"
    """head: one number more from the policy's own network; model: a second network, which costs as much again."""
    gae: Literal["tokens", "steps"] = "tokens"
    """What the critic looks ahead over: single tokens, or whole steps of the environment."""
    discount: float = 1.0
    """How much a reward one place later is worth."""
    trace: float = 0.95
    """The λ of GAE: 1 trusts what happened, 0 trusts the critic."""
    value_coeff: float = 0.1
    """How much a head's error counts in the policy's loss."""
    value_clip: float = 0.2
    """A value gains nothing by moving further than this from what it was; 0 is no limit."""
    critic_learning_rate: float = 1e-4
    """Step size of a critic that is a model of its own."""
    max_ratio: float = 2.0
    """The KL of an older token weighs as much as it is likelier now, up to this; 0 leaves its weight at 1."""
    kl_estimator: KLEstimator = "k1"
    """In the reward only k1 has the right gradient; in the loss all three have."""

    def corrects_old_episodes(self) -> bool:
        """The objective has a ratio of its own."""
        return True

    def check(self) -> None:
        """Also refuses what PPO has no use for."""
        if self.filter_groups:
            raise UserError("ppo's critic learns from every group: leave --filter_groups out.")
        super().check()
        if not self.kl_on_silent_groups:
            raise UserError("ppo computes every episode for its critic: leave --no_kl_on_silent_groups out.")
        if self.kl_place == "reward" and self.kl_estimator != "k1":
            raise UserError("ppo's KL in the reward is one number per token and must be k1: leave --kl_estimator out.")
        if self.minibatches < 1 or self.minibatches > max(self.problems_per_iteration, self.replay_episodes):
            raise UserError(f"--minibatches is {self.minibatches}: it must be from 1 to --problems_per_iteration.")
        if self.discount > 1 or self.trace > 1:
            raise UserError("--discount and --trace must be from 0 to 1.")


class PPO(PolicyGradient):
    """Proximal policy optimisation (https://arxiv.org/abs/1707.06347).

    An episode that the environment truncated is bootstrapped with the critic's value after its last token, which has
    not read what the environment would have replied. An answer that ran out of tokens is graded as it stands and counts
    as terminated: with a reward for it, a value on top would have nothing to hold it down.
    """

    Config: ClassVar[type[RLConfig]] = PPOConfig
    config: PPOConfig

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        model, alone = self.policy.model, self.config.critic == "model"
        learner = self.learner
        if alone:
            settings = replace(learner.settings, learning_rate=self.config.critic_learning_rate)
            learner = Learner(model.trainable_copy(), settings, make_value_head(model), reads_vocabulary=False)
            learner.factor = self.learning_rate_factor
        self.critic = Critic(learner, learns_alone=alone)

    def make_learner(self) -> Learner:
        """Where the critic is a head on the policy, one optimiser moves both."""
        if self.config.critic == "model":
            return super().make_learner()
        return Learner(self.policy.model, self._learner_settings(), make_value_head(self.policy.model))

    def prepare(self, batch: Batch) -> Batch:
        """Asks the critic what it expected and works out what came of it."""
        batch = super().prepare(batch)
        values, after = self.critic.values(batch)
        batch = batch.with_(old_values=values)
        rewards = batch.at_step_ends(batch.rewards)
        if self.config.kl_place == "reward" and self.reference is not None:
            rewards = rewards - self.kl_coeff * (batch.logprobs - batch.reference_logprobs) * batch.mask
        last_values = torch.where(batch.truncated, after, 0.0)
        advantages, targets = LOOKING_AHEAD[self.config.gae](self, rewards, last_values, batch)
        return batch.with_(advantages=advantages, value_targets=targets)

    def credit(self, batch: Batch) -> Tensor:
        """What `prepare` has worked out."""
        return batch.advantages

    def kl_in_reward(self, batch: Batch) -> Tensor:
        """Nothing more: the critic has looked ahead over it already."""
        return torch.zeros_like(batch.advantages)

    def has_signal(self, batch: Batch) -> bool:
        """The advantages are normalised already."""
        return bool((batch.advantages.abs() > NOTHING).any())

    def learnable(self, batch: Batch) -> Batch:
        """Everybody: even an episode that went as expected confirms the critic."""
        return batch

    def objective(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """The clip, token by token."""
        config, old = self.config, old_logprobs(logprobs, batch)
        weights = sampler_weights(old, batch, config.max_sampler_ratio)
        return weights * clipped(token_ratios(logprobs, old), batch.advantages, config.clip, config.clip)

    def loss(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """The policy's loss and, where the critic is a head on it, the critic's."""
        loss = super().loss(logprobs, batch)
        if self.critic.learns_alone:
            return loss
        return loss + self.config.value_coeff * self.value_loss(logprobs, batch)

    def value_loss(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """How wrong the critic was."""
        errors = clipped_value_error(batch.values, batch.old_values, batch.value_targets, self.config.value_clip)
        return AVERAGES[self.config.averaging](errors, batch)

    def learn(self, learnable: Batch, everybody: Batch) -> dict[str, float]:
        """Minibatches move the weights within the first pass too, so ratios are against one look at all beforehand."""
        if self.config.minibatches == 1:
            return super().learn(learnable, everybody)
        before = self.learner.observe(learnable)
        metrics = self.describe(before, learnable, everybody)
        learnable = learnable.after_first_update(before.logprobs)
        updates = [
            self.optimise(part)
            for index in range(self.config.updates_per_iteration)
            for part in learnable.minibatches(
                self.config.minibatches, np.random.default_rng([self.config.seed, self.iteration, 2, index])
            )
        ]
        first = next(update for update in updates if update is not None)
        return metrics | {"loss": first.loss, "gradient_norm": first.gradient_norm}

    def optimise(self, batch: Batch) -> Update | None:
        """A step of the policy, and one of the critic."""
        update = super().optimise(batch)
        self.critic.learn(batch, self.value_loss)
        return update

    def _learner_settings(self) -> LearnerSettings:
        """Every minibatch is an optimiser step."""
        settings = super()._learner_settings()
        return replace(settings, total_steps=settings.total_steps * self.config.minibatches)

    def companions(self) -> dict[str, Companion]:
        """The critic goes into the checkpoint too."""
        return super().companions() | {"critic": self.critic}

    def over_tokens(self, rewards: Tensor, last_values: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """GAE from token to token."""
        config = self.config
        advantages = generalised_advantages(
            rewards, batch.old_values, last_values, batch.mask, config.discount, config.trace
        )
        return advantages, (advantages + batch.old_values) * batch.mask

    def over_steps(self, rewards: Tensor, last_values: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """GAE from step to step: the value before a step's first token, one advantage for all of its tokens."""
        values, real = batch.at_step_starts(batch.old_values)
        earned, config = batch.by_step(rewards), self.config
        advantages = generalised_advantages(earned, values, last_values, real, config.discount, config.trace)
        return batch.at_tokens(advantages), batch.at_tokens(advantages + values)


LOOKING_AHEAD: dict[str, Callable[[PPO, Tensor, Tensor, Batch], tuple[Tensor, Tensor]]] = {
    "tokens": PPO.over_tokens,
    "steps": PPO.over_steps,
}
