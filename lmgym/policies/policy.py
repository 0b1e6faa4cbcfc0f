"""The parent of all policies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from lmgym.types import Action, State


class Policy(ABC):
    """Whatever can act in many conversations at once."""

    @abstractmethod
    def get_actions(self, states: Sequence[State], temperature: float | None = None) -> list[Action]:
        """One action per state; `temperature` overrides the policy's own, and 0 is greedy."""

    def release_cache(self) -> None:  # noqa: B027 - most policies hold nothing
        """Frees the memory that acting took, because learning comes next."""

    def next_actions(self, states: Sequence[State], temperature: float | None = None) -> list[Action]:
        """The actions that are ready, at least one: a loop gives all its states each time and need not wait for all.

        A policy that answers at once answers for every state.
        """
        return self.get_actions(states, temperature)
