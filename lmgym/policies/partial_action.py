"""An action that is being written, in one request to an engine or in several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lmgym.engines.engine import Completion, Request
from lmgym.models.distribution import Distribution
from lmgym.types import Action, Finish, State


@dataclass(eq=False)
class PartialAction:
    """What was fed, what was sampled and forced so far, and the budget for both."""

    state: State
    prompt_ids: tuple[int, ...]
    budget: int
    distribution: Distribution
    policy_version: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)

    @property
    def left(self) -> int:
        """How many tokens of the budget are left."""
        return self.budget - len(self.token_ids)

    def request(self, stop_ids: frozenset[int]) -> Request:
        """Asks for what follows the tokens that are there; forced ones are part of the prompt."""
        # Each turn of an episode has a random stream of its own, so that a turn can be repeated alone.
        seed = self.state.seed * 1_000_003 + self.state.turn
        prompt = (*self.prompt_ids, *self.token_ids)
        return Request(prompt, self.left, self.distribution, seed, draws=sum(self.mask), stop_ids=stop_ids)

    def sampled(self, completion: Completion) -> None:
        """Appends what an engine sampled."""
        if not self.token_ids:
            self.policy_version = completion.policy_version
        self.token_ids += completion.token_ids
        self.logprobs += completion.logprobs
        self.mask += [1] * len(completion.token_ids)

    def force(self, ids: Sequence[int]) -> None:
        """Appends ids that a tool wrote, as far as the budget goes: they are context and not actions."""
        ids = ids[: self.left]
        self.token_ids += ids
        self.logprobs += [0.0] * len(ids)
        self.mask += [0] * len(ids)

    def action(self, text: str, finish: Finish) -> Action:
        """The action, once it is whole."""
        return Action(
            text=text,
            prompt_ids=self.prompt_ids,
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            mask=tuple(self.mask),
            finish=finish,
            policy_version=self.policy_version,
            episode=self.state.episode,
        )
