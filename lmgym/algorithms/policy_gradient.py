"""What policy gradients share: credit, objective and averaging put together, with KL, entropy bonus and filters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lmgym.advantages import NOTHING, scale_by_batch, scale_by_group, teaching_groups, token_returns, unscaled
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.with_reference import WithReference, WithReferenceConfig
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.learning.learner import Update
from lmgym.losses import (
    AVERAGES,
    Averaging,
    KLEstimator,
    adapted_coefficient,
    importance_weights,
    kl_estimate,
    kl_penalty,
    policy_gradient,
)

Normalisation = Literal["none", "group", "batch"]

NORMALISATIONS: dict[Normalisation, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "none": unscaled,
    "group": scale_by_group,
    "batch": scale_by_batch,
}


@dataclass
class PolicyGradientConfig(WithReferenceConfig):
    """The choices that cut across algorithms, one function and one flag each."""

    compares_groups: ClassVar[bool] = False
    """Whether the credit of an episode comes from the others of its group."""

    averaging: Averaging = "token"
    """token: all tokens weigh alike; episode: all episodes do; constant: a sum over a fixed length, without bias."""
    normalisation: Normalisation = "none"
    """Advantages by the deviation of their group's returns, or to mean 0 and deviation 1 over the batch's tokens."""
    max_ratio: float = 0.0
    """Correct for learning from older episodes by importance ratios, cut here; 0 is no correction."""
    filter_groups: bool = False
    """Leave groups without a learning signal out of the averages too, as if they had not been sampled."""
    entropy_coeff: float = 0.0
    """How much each token's entropy is rewarded."""
    kl_estimator: KLEstimator = "k3"
    """k1 (unbiased), k2 (biased) or k3 (unbiased, never negative); in the loss the gradient is right for all three."""
    kl_place: Literal["loss", "reward"] = "loss"
    """In the loss, a token answers for its own KL; in the reward, also for the estimated KL of what follows it."""
    kl_on_silent_groups: bool = True
    """Hold every episode to the reference. Without it a KL in the loss leaves out groups without an advantage, which
    saves their backward pass; but which groups those are depends on the rewards, so the gradient is no longer that of
    the KL, and the pull to the reference fades as problems are solved."""
    kl_target: float = 0.0
    """Let --kl_coeff follow the measured KL so that it comes to this many nats per token; 0 leaves it fixed."""

    def corrects_old_episodes(self) -> bool:
        """Whether more than one update, or a replay, is learnt from as it should be."""
        return bool(self.max_ratio)

    def check(self) -> None:
        """Also refuses the pairs of settings whose gradient would be biased, or nothing."""
        super().check()
        if self.kl_place == "reward" and self.kl_estimator == "k2":
            raise UserError("k2 is a biased estimate of the KL to come: with --kl_place reward use k1 or k3.")
        if self.compares_groups and self.parts_groups:
            raise UserError(
                "an episode that is alone in its group has no advantage over it: give --group_size 2 or more, and "
                "replay whole groups."
            )
        if not self.corrects_old_episodes() and (self.replay_episodes or self.updates_per_iteration > 1):
            raise UserError(
                "without importance ratios one can learn only once from fresh episodes: give --max_ratio 2, or use "
                "reinforce-stable, for --replay_episodes or --updates_per_iteration."
            )
        self._check_kl_of_silent_groups()
        if self.kl_target and not self.kl_coeff:
            raise UserError("--kl_target moves --kl_coeff, which must begin above 0.")

    def _check_kl_of_silent_groups(self) -> None:
        in_reward = bool(self.kl_coeff) and self.kl_place == "reward"
        if self.filter_groups and (self.normalisation == "batch" or in_reward):
            raise UserError(
                "--filter_groups drops groups without an advantage: with --normalisation batch or --kl_place reward "
                "every group has one."
            )
        if self.filter_groups and self.kl_coeff and self.kl_on_silent_groups:
            raise UserError(
                "--filter_groups drops groups without an advantage, and their KL with them: give "
                "--no_kl_on_silent_groups to hold only the others to the reference, or --no_filter_groups to hold all."
            )
        if in_reward and not self.kl_on_silent_groups:
            raise UserError(
                "with --kl_place reward the KL is part of every advantage: leave --no_kl_on_silent_groups out."
            )


class PolicyGradient(WithReference):
    """A subclass states its `credit`, and its `objective` if that is not the plain one."""

    Config: ClassVar[type[RLConfig]] = PolicyGradientConfig
    config: PolicyGradientConfig

    @abstractmethod
    def credit(self, batch: Batch) -> Tensor:
        """How much better than expected each chosen token [episodes, length] was, before it is normalised."""

    def objective(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """What each token adds to the loss [episodes, length]: by default −advantage · log-probability."""
        return self.weights(logprobs, batch) * policy_gradient(logprobs, batch.advantages)

    def weights(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """How much likelier a token is now than when it was sampled, as far as that is corrected for."""
        return importance_weights(logprobs, batch.logprobs, self.config.max_ratio)

    def advantages(self, batch: Batch) -> Tensor:
        """Credit, less the KL where that is part of the reward, normalised."""
        normalise = NORMALISATIONS[self.config.normalisation]
        return normalise(self.credit(batch), self.kl_in_reward(batch), batch.group, batch.mask)

    def loss(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """The average of the objective, of the KL where that is part of the loss, and of the entropy."""
        values = self.objective(logprobs, batch)
        if self.config.kl_place == "loss" and self.reference is not None:
            penalty = kl_penalty(logprobs, batch.reference_logprobs, self.config.kl_estimator)
            values = values + self.kl_coeff * self.weights(logprobs, batch) * penalty * batch.held[:, None]
        if self.config.entropy_coeff:
            values = values - self.config.entropy_coeff * batch.entropies
        return AVERAGES[self.config.averaging](values, batch)

    @property
    def kl_coeff(self) -> float:
        """The strength of the KL now; with a target it moves."""
        return self.memory.get("kl_coeff", self.config.kl_coeff)

    def kl_in_reward(self, batch: Batch) -> Tensor:
        """The KL of each token and of those after it.

        A token's own term must be log p − log q for the gradient to be that of the KL; for later tokens any unbiased
        estimate of theirs will do, and k3 has the least variance.
        """
        if self.config.kl_place == "loss" or self.reference is None:
            return torch.zeros_like(batch.logprobs)
        own = (batch.logprobs - batch.reference_logprobs) * batch.mask
        estimates = kl_estimate(batch.logprobs, batch.reference_logprobs, self.config.kl_estimator) * batch.mask
        following = token_returns(estimates, batch.step_index, getattr(self.config, "discount", 1.0))
        return self.kl_coeff * (own + following) * batch.mask

    def has_signal(self, batch: Batch) -> bool:
        """Looks at the advantages as they would be without a KL in the reward."""
        normalise = NORMALISATIONS[self.config.normalisation]
        earned = normalise(self.credit(batch), torch.zeros_like(batch.logprobs), batch.group, batch.mask)
        return bool((earned.abs() > NOTHING).any())

    def kept(self, batch: Batch, teaching: Tensor) -> Tensor:
        """[episodes] who is left where groups are filtered: those of groups that teach."""
        return teaching

    def learnable(self, batch: Batch) -> Batch:
        """Episodes that neither advantage nor KL nor entropy moves are not computed; filtered groups do not count."""
        teaching = teaching_groups(batch.advantages, batch.group)
        held = torch.ones_like(teaching) if self.config.kl_on_silent_groups else teaching
        batch = batch.with_(held=held)
        if self.config.filter_groups:
            batch = batch.select(self.kept(batch, teaching)).recounted()
        moved = batch.advantages.abs().amax(dim=1) > NOTHING
        if self.reference is not None and self.config.kl_place == "loss":
            moved |= batch.held
        if self.config.entropy_coeff:
            moved[:] = True
        return batch.select(moved)

    def describe(self, update: Update, batch: Batch, everybody: Batch) -> dict[str, float]:
        """Lets the strength of the KL follow its target."""
        metrics = super().describe(update, batch, everybody)
        if self.config.kl_target and "kl" in metrics:
            self.memory["kl_coeff"] = adapted_coefficient(self.kl_coeff, metrics["kl"], self.config.kl_target)
            metrics["kl_coeff"] = self.kl_coeff
        return metrics
