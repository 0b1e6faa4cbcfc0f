"""What an iteration reports: outcomes of its episodes, numbers of its update, and why there was no signal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lmgym.advantages import EPS, over_group
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.parts import KLPenalty
from lmgym.evaluation.grading import accuracy_by_env, is_correct
from lmgym.learning.batch import Batch
from lmgym.learning.learner import Update
from lmgym.losses import kl_estimate, masked_max, masked_mean, masked_quantile
from lmgym.types import OFF_POLICY, Episode

MOST = 0.5
"""A fault that at least this share of the episodes has is named as the likely cause."""


def outcome_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """The means that every iteration reports."""
    return {
        "reward": float(np.mean([episode.reward for episode in episodes])),
        "accuracy": float(np.mean([is_correct(episode) for episode in episodes])),
        "length": float(np.mean([episode.length for episode in episodes])),
        "cut_off": float(np.mean([episode.cut_off for episode in episodes])),
        **reward_parts(episodes),
        **{f"accuracy/{name}": value for name, value in accuracy_by_env(episodes).items()},
    }


def reward_parts(episodes: Sequence[Episode]) -> dict[str, float]:
    """The mean of each part of a weighted reward, before its weight."""
    parts = [episode.info.get("rewards", {}) for episode in episodes]
    names = dict.fromkeys(name for each in parts for name in each)
    return {f"reward/{name}": float(np.mean([each[name] for each in parts if name in each])) for name in names}


def update_metrics(update: Update, selected: Batch, version: int) -> dict[str, float]:
    """Loss, entropy, gradient norm, learning rate, and the log-prob difference of sampler and learner.

    That is of the tokens that the weights of this version sampled; 0 if there are none.
    """
    on_policy = selected.mask & (selected.versions == version)
    difference = (update.logprobs - selected.logprobs).abs()
    return {
        "loss": update.loss,
        "entropy": masked_mean(update.entropies, selected.mask),
        "gradient_norm": update.gradient_norm,
        "learning_rate": update.learning_rate,
        "logprob_diff": masked_mean(difference, on_policy),
        "logprob_diff_p95": masked_quantile(difference, on_policy, 0.95),
        "logprob_diff_max": masked_max(difference, on_policy),
    }


def measured_kl(update: Update, selected: Batch, batch: Batch) -> float:
    """The mean KL per token (k3) to the reference over all on-policy episodes; without any, over those computed.

    For an on-policy episode that was not computed, the sampler's log-probabilities are the policy's. Tokens of an older
    policy get importance weights: without them, one that the policy no longer samples would count exp(ref − π) times.
    """
    if not bool(batch.on_policy.any()):
        is_sampled = selected.versions != OFF_POLICY
        weights = torch.where(is_sampled, update.logprobs - selected.logprobs, 0.0).exp()
        return masked_mean(weights * kl_estimate(update.logprobs, selected.reference_logprobs, "k3"), selected.mask)
    logprobs = batch.logprobs.index_copy(0, selected.row, update.logprobs)[batch.on_policy]
    measured = batch.select(batch.on_policy)
    return masked_mean(kl_estimate(logprobs, measured.reference_logprobs, "k3"), measured.mask)


def has_signal(batch: Batch, config: RLConfig) -> bool:
    """Whether any episode has a non-zero advantage; with a KL in the reward, whether the returns differ."""
    kl = config.part(KLPenalty)
    if kl is None or not kl.in_reward:
        return bool((batch.advantages.abs() > EPS).any())
    returns = batch.returns
    centred = over_group(returns, batch.group) if config.is_group_relative else returns - returns.mean()
    return bool((centred.abs() > EPS).any())


def without_signal(episodes: Sequence[Episode]) -> str:
    """One sentence for the user: what the rewards are, and the likely cause."""
    rewards = [episode.reward for episode in episodes]
    alike = min(rewards) == max(rewards)
    what = f"all {len(rewards)} rewards are {rewards[0]:g}" if alike else "within each group the rewards are equal"
    solved = alike and sum(map(is_correct, episodes)) / len(episodes) >= MOST
    return f"no learning signal in this iteration: {what}. {_likely_cause(episodes, solved)}"


def _likely_cause(episodes: Sequence[Episode], solved: bool) -> str:
    if solved:
        return "The problems are solved: give harder ones."
    cut_off = sum(episode.cut_off for episode in episodes) / len(episodes)
    if cut_off >= MOST:
        return f"{cut_off:.0%} were cut off: raise --max_tokens."
    unparsed = sum(not episode.info.get("parsed", True) for episode in episodes) / len(episodes)
    if unparsed >= MOST:
        return f"In {unparsed:.0%} no answer was found: show the expected form with --shots or --system_prompt."
    return "Give easier problems or more --shots, so that some episodes succeed, or a larger --group_size."
