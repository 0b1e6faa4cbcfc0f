"""The base class of policies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from lmgym.types import Action, State


class Policy(ABC):
    """Maps states to actions, for many episodes at once."""

    serves_all_processes: bool = False
    """Whether the first process of a run samples all episodes; otherwise each process samples its share."""

    @abstractmethod
    def get_actions(self, states: Sequence[State], temperature: float | None = None) -> list[Action]:
        """One action per state; `temperature` overrides the policy's own, and 0 is greedy."""

    def release_cache(self) -> None:  # noqa: B027 - most policies hold nothing
        """Frees the memory that sampling used, before the update."""

    def next_actions(self, states: Sequence[State], temperature: float | None = None) -> list[Action]:
        """The actions that are ready, at least one; a loop passes all its states each time and need not wait for all.

        By default, the actions of all states.
        """
        return self.get_actions(states, temperature)
