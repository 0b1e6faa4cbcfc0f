"""An action that is being sampled, in one or several engine requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lmgym.engines.engine import Completion, Request
from lmgym.models.distribution import Distribution
from lmgym.types import Action, Finish, State


@dataclass(eq=False)
class PartialAction:
    """The prompt, the tokens sampled and forced so far, and the token budget for both."""

    state: State
    prompt_ids: tuple[int, ...]
    budget: int
    distribution: Distribution
    policy_version: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Number of tokens left in the budget."""
        return self.budget - len(self.token_ids)

    def request(self, stop_ids: frozenset[int]) -> Request:
        """The request that continues the tokens so far; forced tokens are part of its prompt."""
        # Each turn of an episode has its own random stream, so that a turn can be reproduced alone.
        seed = self.state.seed * 1_000_003 + self.state.turn
        prompt = (*self.prompt_ids, *self.token_ids)
        draws, group = sum(self.mask), self.state.group
        return Request(prompt, self.left, self.distribution, seed, draws, stop_ids, group)

    def sampled(self, completion: Completion) -> None:
        """Appends the completion of an engine."""
        self.versions += completion.versions
        self.token_ids += completion.token_ids
        self.logprobs += completion.logprobs
        self.mask += [1] * len(completion.token_ids)

    def force(self, ids: Sequence[int]) -> None:
        """Appends forced tokens of a tool, up to the budget; their mask is 0."""
        ids = ids[: self.left]
        self.versions += [self.versions[-1] if self.versions else self.policy_version] * len(ids)
        self.token_ids += ids
        self.logprobs += [0.0] * len(ids)
        self.mask += [0] * len(ids)

    def action(self, text: str, finish: Finish) -> Action:
        """The complete action."""
        return Action(
            text=text,
            prompt_ids=self.prompt_ids,
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            mask=tuple(self.mask),
            finish=finish,
            policy_version=min(self.versions, default=self.policy_version),
            versions=tuple(self.versions) if len(set(self.versions)) > 1 else (),
            episode=self.state.episode,
        )
