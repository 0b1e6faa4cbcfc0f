"""The parts that algorithms list in their settings: each is a few flags and the pure function that they switch on.

    class GRPOConfig(RLConfig):
        kl: KL = KL()                                    # --kl_coeff --update_reference_every --kl_place --kl_target
        entropy: EntropyBonus = EntropyBonus()           # --entropy_coeff
        importance: TruncatedImportanceSampling = …      # --tis_cap

A flag that belongs to a part which an algorithm does not list does not exist for that algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from lmgym.advantages import divide_by_group_std, kl_to_go, standardise
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.losses import KLEstimator, importance_weights, kl_penalty
from lmgym.models.token_scorer import Scores


@dataclass(frozen=True)
class KLPenalty:
    """A KL penalty to a reference policy, in the loss."""

    kl_coeff: float = 0.0
    """Coefficient of the KL penalty to the reference policy; 0 loads no reference. Under --top_k or --top_p the KL is
    approximate: the reference keeps each sampled token, even where its own truncation would drop it."""
    update_reference_every: int = 0
    """Copy the policy into the reference every this many iterations; 0: never."""

    kl_place: ClassVar[Literal["loss", "reward"]] = "loss"
    kl_target: ClassVar[float] = 0.0

    @property
    def in_loss(self) -> bool:
        """Whether every episode has a KL gradient of its own, whatever its advantage."""
        return bool(self.kl_coeff) and self.kl_place == "loss"

    @property
    def in_reward(self) -> bool:
        """Whether the KL is part of the advantages."""
        return bool(self.kl_coeff) and self.kl_place == "reward"

    def penalty(self, scores: Scores, batch: Batch, tis_cap: float) -> Tensor | float:
        """[episodes, length] coefficient · importance weight · KL of each token, with the gradient of the KL."""
        if not self.in_loss:
            return 0.0
        weights = importance_weights(scores.logprobs, batch.logprobs, tis_cap)
        return batch.kl_coeff * weights * kl_penalty(scores.logprobs, batch.reference_logprobs, "k3")

    def check(self) -> None:
        """Refuses settings of a KL that is switched off."""
        if self.update_reference_every and not self.kl_coeff:
            raise UserError("--update_reference_every needs a KL penalty to the reference: give --kl_coeff.")
        if self.kl_target and not self.kl_coeff:
            raise UserError("--kl_target adapts --kl_coeff, which must begin above 0.")


@dataclass(frozen=True)
class KL(KLPenalty):
    """A KL penalty in the loss or in the reward, with a fixed or an adaptive coefficient."""

    kl_place: Literal["loss", "reward"] = "loss"  # type: ignore[misc]
    """loss: gradient of each token's own KL; reward: the return of a token also includes the KL of later tokens."""
    kl_target: float = 0.0  # type: ignore[misc]
    """Adapt --kl_coeff so that the measured KL per token approaches this; 0: fixed coefficient."""

    def to_go(self, batch: Batch, discount: float = 1.0, estimator: KLEstimator = "k3") -> Tensor | float:
        """[episodes, length] coefficient · KL of each token and the tokens after it; 0 unless it is in the reward."""
        if not self.in_reward:
            return 0.0
        return batch.kl_coeff * kl_to_go(
            batch.logprobs, batch.reference_logprobs, batch.mask, batch.step_index, discount, estimator
        )


@dataclass(frozen=True)
class EntropyBonus:
    """A reward for the entropy of the policy at each token."""

    entropy_coeff: float = 0.0
    """Coefficient of the entropy bonus; its gradient is exact over the whole vocabulary."""

    def penalty(self, scores: Scores) -> Tensor | float:
        """[episodes, length] minus the bonus, to be added to the loss of each token."""
        return -self.entropy_coeff * scores.entropies if self.entropy_coeff else 0.0


@dataclass(frozen=True)
class TruncatedImportanceSampling:
    """Importance weights for stale episodes and for a sampler that rounds differently from the learner."""

    tis_cap: float = 0.0
    """Truncated importance sampling: token weights π_learner / π_sampler are capped here; 0: no correction."""

    def check(self) -> None:
        """Refuses a cap that would scale every weight down."""
        if 0 < self.tis_cap < 1:
            raise UserError(f"--tis_cap is {self.tis_cap}: it must be 0 or at least 1.")

    def weights(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """[episodes, length] truncated weights π / π_sampler, constant for the gradient."""
        return importance_weights(logprobs, batch.logprobs, self.tis_cap)


@dataclass(frozen=True)
class GroupFilter:
    """Which groups, and which of their episodes, take part in an update."""

    filter_groups: bool = False
    """Drop groups whose advantages are all zero from the loss denominators too, as if they had not been sampled."""
    max_resample_rounds: int = 1
    """With --filter_groups: sample further problems, up to this many rounds per iteration, until
    --problems_per_iteration groups have a non-zero advantage (dynamic sampling); surplus groups are dropped."""
    learn_per_group: int = 0
    """Learn from at most this many episodes of each group, as many with a positive as with a negative advantage, each
    weighted for those left out: a cheaper update with the same expected gradient. 0: all of them."""

    def check(self) -> None:
        """Refuses an iteration that never samples."""
        if self.max_resample_rounds < 1:
            raise UserError(f"--max_resample_rounds is {self.max_resample_rounds}: it must be at least 1.")
        if self.learn_per_group == 1:
            raise UserError("--learn_per_group is 1: a group needs a better and a worse episode, so give 2 or more.")


@dataclass(frozen=True)
class UpdateLimit:
    """How far one update may move the policy."""

    max_update_kl: float = 0.0
    """Scale an update back until the KL per token between the policies before and after it, measured on eight of its
    episodes, is at most this, such as 0.01; it needs a copy of the weights. 0: no limit."""


AdvantageNormName = Literal["none", "group", "batch"]


@dataclass(frozen=True)
class AdvantageNorm:
    """How advantages are normalised."""

    advantage_norm: AdvantageNormName = "none"
    """group: divide by the standard deviation of the group; batch: zero mean, unit deviation over all action tokens."""

    def apply(self, advantages: Tensor, batch: Batch, kl_to_go: Tensor | float = 0.0) -> Tensor:
        """Normalised advantages less the KL of the reward; with `batch` the KL is normalised with them."""
        if self.advantage_norm == "batch":
            return standardise(advantages - kl_to_go, batch.mask)
        if self.advantage_norm == "group":
            return divide_by_group_std(advantages, batch.group, batch.mask) - kl_to_go
        return advantages - kl_to_go
