"""GRPO: PPO's clipped ratio without a critic; the group is the baseline (Shao et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmgym.advantages import over_group
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.policy_gradient import Normalisation, PolicyGradient, PolicyGradientConfig
from lmgym.learning.batch import Batch
from lmgym.losses import Averaging, clipped, old_logprobs, sampler_weights, token_ratios


@dataclass
class GroupRelativeConfig(PolicyGradientConfig):
    """Returns over their group's mean and by its deviation."""

    compares_groups: ClassVar[bool] = True

    normalisation: Normalisation = "group"
    """group divides by the deviation of the group's credit."""
    max_ratio: float = 2.0
    """The KL of an older token weighs as much as it is likelier now, up to this; 0 leaves its weight at 1."""

    def corrects_old_episodes(self) -> bool:
        """The objective has a ratio of its own."""
        return True


@dataclass
class GRPOConfig(GroupRelativeConfig):
    """GRPO: returns over their group's mean and by its deviation, a clipped ratio, the mean over episodes."""

    averaging: Averaging = "episode"
    """token: all tokens weigh alike; episode: all episodes do; constant: a sum over a fixed length, without bias."""
    clip_low: float = 0.2
    """A token's probability need not fall below 1 − this of what it was."""
    clip_high: float = 0.2
    """Nor rise above 1 + this."""
    max_sampler_ratio: float = 2.0
    """A token weighs as much as it was likelier to the learner than to the sampler, up to this; 0 is no correction."""


class GroupRelative(PolicyGradient):
    """The credit that GRPO and its relatives share.

    The mean contains the episode itself, which shrinks the update by one part in the group's size, and the deviation
    is of what was sampled, which biases it towards problems that are nearly always or never solved.
    """

    def credit(self, batch: Batch) -> Tensor:
        """The return over the group's mean."""
        return batch.at_every_token(over_group(batch.returns, batch.group))


class GRPO(GroupRelative):
    """Credit: over the group. Objective: the clipped ratio (https://arxiv.org/abs/2402.03300)."""

    Config: ClassVar[type[RLConfig]] = GRPOConfig
    config: GRPOConfig

    def ratios(self, logprobs: Tensor, old: Tensor, batch: Batch) -> Tensor:
        """How much likelier each token is now."""
        return token_ratios(logprobs, old)

    def objective(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """PPO's clip of those ratios."""
        config, old = self.config, old_logprobs(logprobs, batch)
        ratios = self.ratios(logprobs, old, batch)
        weights = sampler_weights(old, batch, config.max_sampler_ratio)
        return weights * clipped(ratios, batch.advantages, config.clip_low, config.clip_high)
