"""PPO: a critic, generalised advantage estimation and a clipped surrogate (Schulman et al., 2017)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lmgym.advantages import generalised_advantages
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.parts import KL, AdvantageNorm, EntropyBonus, TruncatedImportanceSampling
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.learning.critic import Critic, make_value_head
from lmgym.learning.learner import Learner
from lmgym.losses import clipped_surrogate, clipped_value_error, per_token
from lmgym.models.token_scorer import Scores
from lmgym.policies.llm_policy import LLMPolicy


@dataclass
class PPOConfig(RLConfig):
    """PPO with a critic that is a value head on the policy or a model of its own."""

    is_off_policy: ClassVar[bool] = True

    updates_per_iteration: int = 2
    """Epochs over the batch per iteration."""
    minibatches: int = 1
    """Minibatches per epoch, each an optimiser step on random whole groups."""
    clip: float = 0.2
    """PPO clip range: ratios outside of 1 ± clip get no gradient in the advantage's direction."""
    critic: Literal["head", "model"] = "head"
    """head: a value head on the policy's network; model: a second network, with twice the memory."""
    gae: Literal["tokens", "steps"] = "tokens"
    """Whether advantages are estimated from token to token or from step to step of the environment."""
    discount: float = 1.0
    """Discount factor γ per token, or per step with --gae steps."""
    gae_lambda: float = 0.95
    """The λ of GAE: 1 is the Monte Carlo return, 0 the one-step TD error."""
    value_coeff: float = 0.1
    """Coefficient of the value loss of a value head in the policy's loss."""
    value_clip: float = 0.2
    """Value clip range: a value that has moved further than this towards its target gets no gradient; 0: no clip."""
    critic_learning_rate: float = 1e-4
    """Learning rate of a critic with a network of its own."""
    norm: AdvantageNorm = AdvantageNorm("batch")
    kl: KL = KL(0.0)
    entropy: EntropyBonus = EntropyBonus()
    importance: TruncatedImportanceSampling = TruncatedImportanceSampling(tis_cap=2.0)

    @property
    def optimiser_steps(self) -> int:
        """Every minibatch is an optimiser step."""
        return super().optimiser_steps * self.minibatches

    @property
    def uses_value_head(self) -> bool:
        """Whether the critic is a head on the policy's network."""
        return self.critic == "head"

    def check(self) -> None:
        """Also refuses impossible minibatches and discounts."""
        super().check()
        if self.minibatches < 1 or self.minibatches > max(self.problems_per_iteration, self.replay_episodes):
            raise UserError(f"--minibatches is {self.minibatches}: it must be from 1 to --problems_per_iteration.")
        if self.discount > 1 or self.gae_lambda > 1:
            raise UserError("--discount and --gae_lambda must be from 0 to 1.")


class PPO(RLAlgorithm):
    """Proximal policy optimisation (https://arxiv.org/abs/1707.06347). Average: per token.

    A truncated episode is bootstrapped with the critic's value after its last token, unless the environment rewarded
    its outcome as it stood, as maths environments do: a value on top of a final reward would have nothing to bound it.
    """

    Config: ClassVar[type[RLConfig]] = PPOConfig
    can_shard: ClassVar[bool] = False
    config: PPOConfig
    critic: Critic

    def setup(self, ref_policy: LLMPolicy | None) -> None:
        """The critic: the policy's own value head, or a second network with an optimiser of its own."""
        super().setup(ref_policy)
        self.minibatches = self.config.minibatches
        learner, model = self.learner, self.policy.model
        if not self.config.uses_value_head:
            settings = replace(learner.settings, learning_rate=self.config.critic_learning_rate)
            learner = Learner(model.trainable_copy(), settings, make_value_head(model), reads_vocabulary=False)
            learner.schedule = self.learner.schedule
            self.auxiliary_objectives = [(learner, self.value_loss)]
        self.critic = Critic(learner, has_own_network=not self.config.uses_value_head)
        self.auxiliary_state["critic"] = self.critic

    def prepare(self, batch: Batch) -> Batch:
        """Values, GAE and value targets; a KL in the reward is charged token by token."""
        values, last_values = self.critic.values(batch)
        batch = batch.with_(old_values=values)
        rewards = batch.at_step_ends(batch.rewards)
        if self.config.kl.in_reward:
            rewards = rewards - batch.kl_coeff * (batch.logprobs - batch.reference_logprobs) * batch.mask
        last_values = torch.where(batch.truncated, last_values, 0.0)
        advantages, targets = GAE_MODES[self.config.gae](self.config, rewards, last_values, batch)
        return batch.with_(advantages=advantages, value_targets=targets)

    def advantages(self, batch: Batch) -> Tensor:
        """The GAE of `prepare`, normalised."""
        return self.config.norm.apply(batch.advantages, batch)

    def select_for_update(self, batch: Batch) -> Batch:
        """Every episode: the critic learns from all of them."""
        return batch

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """The clipped surrogate and, where the critic is a head on the policy, the value loss."""
        config, cap = self.config, self.config.importance.tis_cap
        values = clipped_surrogate(scores.logprobs, batch, config.clip, config.clip, cap)
        values = values + config.kl.penalty(scores, batch, cap) + config.entropy.penalty(scores)
        loss = per_token(values, batch)
        return loss + config.value_coeff * self.value_loss(scores, batch) if config.uses_value_head else loss

    def value_loss(self, scores: Scores, batch: Batch) -> Tensor:
        """The clipped squared error of the critic."""
        errors = clipped_value_error(scores.values, batch.old_values, batch.value_targets, self.config.value_clip)
        return per_token(errors, batch)


def gae_over_tokens(config: PPOConfig, rewards: Tensor, last_values: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Advantages and value targets [episodes, length] from token to token."""
    advantages = generalised_advantages(
        rewards, batch.old_values, last_values, batch.mask, config.discount, config.gae_lambda
    )
    return advantages, (advantages + batch.old_values) * batch.mask


def gae_over_steps(config: PPOConfig, rewards: Tensor, last_values: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Advantages and value targets from step to step: the value before a step's first token, one for all its tokens."""
    values, valid = batch.at_step_starts(batch.old_values)
    step_rewards = batch.by_step(rewards)
    advantages = generalised_advantages(step_rewards, values, last_values, valid, config.discount, config.gae_lambda)
    return batch.at_tokens(advantages), batch.at_tokens(advantages + values)


GAE_MODES: dict[str, Callable[[PPOConfig, Tensor, Tensor, Batch], tuple[Tensor, Tensor]]] = {
    "tokens": gae_over_tokens,
    "steps": gae_over_steps,
}
