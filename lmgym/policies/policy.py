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
