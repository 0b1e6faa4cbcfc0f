"""Episodes as tensors: column t of every [episodes, length] tensor is about token t; no other code shifts columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmgym.buffer import group_key
from lmgym.models.prefix_tree import shared_with_previous
from lmgym.types import OFF_POLICY, Episode


@dataclass(frozen=True)
class Batch:
    """The input of advantages and losses: numbers only, never text."""

    tokens: Tensor
    """[episodes, length] ids, padded on the right with 0."""
    lengths: Tensor
    """[episodes] number of ids without padding."""
    mask: Tensor
    """[episodes, length] True at action tokens, False at prompt, reply, forced and padding tokens."""
    logprobs: Tensor
    """[episodes, length] the sampler's log-probability of each action token."""
    step_index: Tensor
    """[episodes, length] the step each token belongs to, -1 for prompts and replies."""
    rewards: Tensor
    """[episodes, steps] one reward per step, padded with 0."""
    step_count: Tensor
    """[episodes] number of steps without padding."""
    truncated: Tensor
    """[episodes] True where a limit ended the episode and a critic bootstraps.

    False where the environment has already rewarded the final outcome (`final` in its info): a bootstrapped value on
    top of that reward would feed back into the critic's own targets.
    """
    group: Tensor
    """[episodes] equal for samples of one problem by one policy."""
    policy_version: Tensor
    """[episodes] the oldest version that sampled a token of it; versions count optimiser steps."""
    versions: Tensor
    """[episodes, length] the version that sampled each action token."""
    seed: Tensor
    """[episodes] the seed each one was sampled with; it breaks ties, because it is independent of the outcome."""
    advantages: Tensor
    """[episodes, length] the advantage of each token; 0 until an algorithm computes it."""
    reference_logprobs: Tensor
    """[episodes, length] the reference policy's log-probabilities; 0 where no reference is used."""
    row: Tensor
    """[episodes] index of each episode in the batch that this one was selected from."""
    on_policy: Tensor
    """[episodes] True where the current weights sampled the episode.

    Its ratios are then against the learner's own log-probabilities, which the sampler's only approximate.
    """
    old_logprobs: Tensor
    """[episodes, length] the denominator of ratios of all other episodes: the learner's log-probabilities in the first
    update of this iteration, or the sampler's of an older episode."""
    old_values: Tensor
    """[episodes, length] the critic's value before each token, before the update; 0 without a critic."""
    value_targets: Tensor
    """[episodes, length] the regression targets of the critic; 0 without a critic."""
    kl_coeff: float
    """Coefficient of the KL penalty in this update; 0 without a reference."""
    total_tokens: int
    """Action tokens in the whole optimiser step: the loss denominator, whatever the size of the micro-batches."""
    total_episodes: int
    """Episodes in the whole optimiser step."""
    length_limit: int
    """Maximum length of an episode in tokens, the same for every batch of a run; 1 until an algorithm sets it."""

    @classmethod
    def from_episodes(cls, episodes: Sequence[Episode]) -> Batch:
        """Pads episodes into tensors, sorted by group and tokens so that shared prefixes are neighbours."""
        numbers = {key: number for number, key in enumerate(dict.fromkeys(group_key(e) for e in episodes))}
        episodes = sorted(episodes, key=lambda episode: (numbers[group_key(episode)], episode.tokens))
        return cls.from_tensors(
            tokens=_padded([episode.tokens for episode in episodes], torch.long),
            lengths=torch.tensor([len(episode.tokens) for episode in episodes]),
            mask=_padded([episode.mask for episode in episodes], torch.bool),
            logprobs=_padded([episode.logprobs for episode in episodes], torch.float32),
            step_index=_padded([episode.step_index for episode in episodes], torch.long, filler=-1),
            rewards=_padded([episode.rewards for episode in episodes], torch.float32),
            step_count=torch.tensor([len(episode.steps) for episode in episodes]),
            truncated=torch.tensor([e.steps[-1].truncated and not e.info.get("final") for e in episodes]),
            group=torch.tensor([numbers[group_key(episode)] for episode in episodes]),
            policy_version=torch.tensor([episode.policy_version for episode in episodes]),
            versions=_padded([episode.versions for episode in episodes], torch.long, filler=OFF_POLICY),
            seed=torch.tensor([episode.steps[0].state.seed for episode in episodes]),
        )

    @classmethod
    def from_tensors(
        cls,
        *,
        tokens: Tensor,
        lengths: Tensor,
        mask: Tensor,
        logprobs: Tensor,
        step_index: Tensor,
        rewards: Tensor,
        step_count: Tensor,
        truncated: Tensor,
        group: Tensor,
        policy_version: Tensor,
        seed: Tensor,
        versions: Tensor | None = None,
    ) -> Batch:
        """A batch of sampled data; what the learner fills in has its initial value, and every episode is off-policy."""
        blank = torch.zeros_like(logprobs)
        return cls(
            tokens=tokens,
            lengths=lengths,
            mask=mask,
            logprobs=logprobs,
            step_index=step_index,
            rewards=rewards,
            step_count=step_count,
            truncated=truncated,
            group=group,
            policy_version=policy_version,
            versions=policy_version[:, None].expand(tokens.shape) if versions is None else versions,
            seed=seed,
            advantages=blank,
            reference_logprobs=blank,
            row=torch.arange(len(tokens)),
            on_policy=torch.zeros(len(tokens), dtype=torch.bool),
            old_logprobs=logprobs,
            old_values=blank,
            value_targets=blank,
            kl_coeff=0.0,
            total_tokens=max(int(mask.sum()), 1),
            total_episodes=len(tokens),
            length_limit=1,
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def returns(self) -> Tensor:
        """[episodes] the undiscounted sum of each one's rewards."""
        return self.rewards.sum(dim=1)

    def with_(self, **filled: Any) -> Batch:
        """A copy with some fields replaced, such as the advantages."""
        return replace(self, **filled)

    def select(self, rows: Tensor) -> Batch:
        """A subset of the episodes; the loss denominators stay those of the full batch."""
        return self._map(lambda tensor: tensor[rows])

    def recounted(self) -> Batch:
        """The same episodes, with loss denominators that count only these."""
        return replace(self, total_tokens=max(int(self.mask.sum()), 1), total_episodes=len(self))

    def minibatches(self, count: int, random: np.random.Generator) -> list[Batch]:
        """Splits whole groups into `count` random minibatches with denominators of their own; at most one per group."""
        groups = random.permutation(self.group.unique().numpy())
        parts = [torch.from_numpy(part) for part in np.array_split(groups, count) if len(part)]
        return [self.select(torch.isin(self.group, part)).recounted() for part in parts]

    def to(self, device: torch.device) -> Batch:
        """A copy on a device."""
        return self._map(lambda tensor: tensor.to(device))

    def after_first_update(self, logprobs: Tensor) -> Batch:
        """The same episodes for later updates, given the learner's log-probabilities in the first."""
        old = torch.where(self.on_policy[:, None], logprobs, self.old_logprobs)
        return replace(self, old_logprobs=old, on_policy=torch.zeros_like(self.on_policy))

    def at_every_token(self, per_episode: Tensor) -> Tensor:
        """Broadcasts one value per episode to its action tokens, 0 elsewhere."""
        return per_episode[:, None] * self.mask

    def at_tokens(self, per_step: Tensor) -> Tensor:
        """Broadcasts one value per step [episodes, steps] to the action tokens of that step, 0 elsewhere."""
        values = per_step.gather(1, self.step_index.clamp(min=0))
        return torch.where(self.mask, values, torch.zeros_like(values))

    def at_step_ends(self, per_step: Tensor) -> Tensor:
        """Puts each step's value on its last action token, or on the last earlier one if the step has none."""
        spread = per_step.new_zeros(self.mask.shape)
        columns = torch.arange(self.mask.shape[1], device=self.mask.device)
        for step in range(per_step.shape[1]):
            here = (per_step[:, step] != 0) & (step < self.step_count)
            last = torch.where(self.mask & (self.step_index <= step), columns, -1).max(dim=1).values
            rows = torch.nonzero(here & (last >= 0))[:, 0]
            spread[rows, last[rows]] += per_step[rows, step]
        return spread

    def at_step_starts(self, per_token: Tensor) -> tuple[Tensor, Tensor]:
        """The value at the first action token of each step [episodes, steps], and a mask of the steps that have one."""
        steps = torch.arange(self.rewards.shape[1], device=self.mask.device)
        chosen = self.mask[:, None] & (self.step_index[:, None] == steps[:, None])  # [episodes, steps, length]
        real = chosen.any(dim=2)
        first = chosen.long().argmax(dim=2)
        return per_token.gather(1, first) * real, real

    def by_step(self, per_token: Tensor) -> Tensor:
        """Sums the values of each step's action tokens [episodes, steps]."""
        sums = per_token.new_zeros(self.rewards.shape)
        return sums.scatter_add_(1, self.step_index.clamp(min=0), per_token * self.mask)

    def micro_batches(self, max_tokens: int, shared: int = 0, whole_groups: bool = False) -> Iterator[Batch]:
        """Splits into micro-batches of at most `max_tokens` computed tokens.

        The `shared` first tokens are not counted, nor the prefix that an episode shares with the one before it in its
        micro-batch. A group that must not be split may exceed the limit.
        """
        without_prefix = self.lengths - shared
        beyond_previous = self.lengths - shared_with_previous(self.tokens, self.lengths).clamp(min=shared)
        rows: list[int] = []
        used = 0
        for row, (alone, added) in enumerate(zip(without_prefix.tolist(), beyond_previous.tolist(), strict=True)):
            together = whole_groups and rows and bool(self.group[row] == self.group[rows[-1]])
            if rows and used + added > max_tokens and not together:
                yield self.select(torch.tensor(rows))
                rows, used = [], 0
            used += added if rows else alone
            rows.append(row)
        if rows:
            yield self.select(torch.tensor(rows))

    def _map(self, function: Any) -> Batch:
        changed = {
            field.name: function(value)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **changed)


def _padded(rows: Sequence[Sequence[Any]], dtype: torch.dtype, filler: float = 0) -> Tensor:
    padded = torch.full((len(rows), max(map(len, rows))), filler, dtype=dtype)
    for line, row in enumerate(rows):
        padded[line, : len(row)] = torch.tensor(row, dtype=dtype)
    return padded
