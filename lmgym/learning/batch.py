"""Episodes as tensors: column t of every [episodes, length] tensor is about token t, so nothing shifts elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from lmgym.learning.packing import shared_with_previous
from lmgym.types import Episode


@dataclass(frozen=True)
class Batch:
    """What credit and loss may look at: numbers only, never text."""

    tokens: Tensor
    """[episodes, length] ids, padded on the right with 0."""
    lengths: Tensor
    """[episodes] how many of them are real."""
    mask: Tensor
    """[episodes, length] True where the policy chose the token."""
    logprobs: Tensor
    """[episodes, length] the sampler's log-probability of each chosen token."""
    step_index: Tensor
    """[episodes, length] the step each token belongs to, -1 for what was only read."""
    rewards: Tensor
    """[episodes, steps] one reward per step, padded with 0."""
    step_count: Tensor
    """[episodes] how many steps are real."""
    group: Tensor
    """[episodes] equal for samples of one problem by one policy."""
    policy_version: Tensor
    """[episodes] the version that wrote the last step; versions count optimiser steps."""
    advantages: Tensor
    """[episodes, length] the credit of each token; 0 until an algorithm gives it."""
    reference_logprobs: Tensor
    """[episodes, length] the reference policy's log-probabilities; 0 where no reference is used."""
    total_tokens: int
    """Chosen tokens in the whole optimiser step: the denominator that no micro-batch changes."""
    total_episodes: int
    """Episodes in the whole optimiser step."""

    @classmethod
    def from_episodes(cls, episodes: Sequence[Episode]) -> Batch:
        """Lays episodes out side by side: those of one group, and in it those that begin alike, are neighbours."""
        numbers = {key: number for number, key in enumerate(dict.fromkeys(_group_key(e) for e in episodes))}
        episodes = sorted(episodes, key=lambda episode: (numbers[_group_key(episode)], episode.tokens))
        mask = _padded([episode.mask for episode in episodes], torch.bool)
        return cls(
            tokens=_padded([episode.tokens for episode in episodes], torch.long),
            lengths=torch.tensor([len(episode.tokens) for episode in episodes]),
            mask=mask,
            logprobs=_padded([episode.logprobs for episode in episodes], torch.float32),
            step_index=_padded([episode.step_index for episode in episodes], torch.long, filler=-1),
            rewards=_padded([episode.rewards for episode in episodes], torch.float32),
            step_count=torch.tensor([len(episode.steps) for episode in episodes]),
            group=torch.tensor([numbers[_group_key(episode)] for episode in episodes]),
            policy_version=torch.tensor([episode.steps[-1].action.policy_version for episode in episodes]),
            advantages=torch.zeros(mask.shape),
            reference_logprobs=torch.zeros(mask.shape),
            total_tokens=max(int(mask.sum()), 1),
            total_episodes=len(episodes),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def with_(self, *, advantages: Tensor | None = None, reference_logprobs: Tensor | None = None) -> Batch:
        """The same episodes with their credit or their reference filled in."""
        batch = self if advantages is None else replace(self, advantages=advantages)
        return batch if reference_logprobs is None else replace(batch, reference_logprobs=reference_logprobs)

    def select(self, rows: Tensor) -> Batch:
        """Some of the episodes; the totals stay those of the whole."""
        return self._map(lambda tensor: tensor[rows])

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        return self._map(lambda tensor: tensor.to(device))

    def at_tokens(self, per_step: Tensor) -> Tensor:
        """Spreads one value per step [episodes, steps] over the tokens of that step, 0 elsewhere."""
        values = per_step.gather(1, self.step_index.clamp(min=0))
        return torch.where(self.mask, values, torch.zeros_like(values))

    def micro_batches(self, max_tokens: int, about: int = 1, shared: int = 0) -> Iterator[Batch]:
        """Cuts into `about` parts or more of at most `max_tokens` tokens, as many as are computed.

        The `shared` first ones are not counted, nor those that an episode begins with as the one before it in its part.
        """
        whole = self.lengths - shared
        more = self.lengths - shared_with_previous(self.tokens, self.lengths).clamp(min=shared)
        budget = min(max_tokens, -(-int(more.sum()) // about))
        rows: list[int] = []
        used = 0
        for row, (alone, added) in enumerate(zip(whole.tolist(), more.tolist(), strict=True)):
            if rows and used + added > budget:
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


def _group_key(episode: Episode) -> tuple[int, int]:
    """Groups are numbered anew in every iteration: replayed ones must not meet fresh ones of the same number."""
    return episode.iteration, episode.group


def _padded(rows: Sequence[Sequence[Any]], dtype: torch.dtype, filler: float = 0) -> Tensor:
    padded = torch.full((len(rows), max(map(len, rows))), filler, dtype=dtype)
    for line, row in enumerate(rows):
        padded[line, : len(row)] = torch.tensor(row, dtype=dtype)
    return padded
