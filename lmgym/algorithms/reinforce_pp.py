"""REINFORCE++: a KL in the reward, advantages normalised over the whole batch, and PPO's clip (Hu, 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.policy_gradient import Normalisation
from lmgym.algorithms.reinforce import Reinforce, ReinforceConfig
from lmgym.learning.batch import Batch
from lmgym.losses import KLEstimator, clipped, old_logprobs, sampler_weights, token_ratios


@dataclass
class ReinforcePPConfig(ReinforceConfig):
    """REINFORCE++: with --baseline group and --kl_place loss it is its second variant, which suits groups."""

    baseline: Literal["group", "batch", "running", "greedy", "none"] = "none"
    """none is the original; group is REINFORCE++-baseline."""
    normalisation: Normalisation = "batch"
    """batch makes the advantages of all tokens one population."""
    kl_coeff: float = 0.001
    """How strongly the policy is held to the reference; 0 computes no reference at all."""
    kl_estimator: KLEstimator = "k1"
    """How the KL of later tokens is estimated."""
    kl_place: Literal["loss", "reward"] = "reward"
    """In the reward, a token answers for its own KL and for that of what follows it."""
    max_ratio: float = 2.0
    """The weight of a KL in the loss, if it is put there, is cut here."""
    clip: float = 0.2
    """A token's probability need not move further than this share of what it was."""
    max_sampler_ratio: float = 2.0
    """A token weighs as much as it was likelier to the learner than to the sampler, up to this; 0 is no correction."""

    def corrects_old_episodes(self) -> bool:
        """The objective has a ratio of its own."""
        return True


class ReinforcePP(Reinforce):
    """No critic and no group is needed (https://arxiv.org/abs/2501.03262)."""

    Config: ClassVar[type[RLConfig]] = ReinforcePPConfig
    config: ReinforcePPConfig

    def objective(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """PPO's clip, token by token."""
        config, old = self.config, old_logprobs(logprobs, batch)
        weights = sampler_weights(old, batch, config.max_sampler_ratio)
        return weights * clipped(token_ratios(logprobs, old), batch.advantages, config.clip, config.clip)
