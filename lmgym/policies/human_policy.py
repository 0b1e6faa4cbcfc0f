"""A human at the keyboard."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lmgym.policies.policy import Policy
from lmgym.types import Action, State


class HumanPolicy(Policy):
    """Asks a person for every action through `ask`, which is shown the state and returns a line."""

    def __init__(self, ask: Callable[[State], str]) -> None:
        self.ask = ask

    def get_actions(self, states: Sequence[State], temperature: float | None = None) -> list[Action]:
        """One question after the other; a person has no temperature."""
        return [Action(self.ask(state) + "\n", episode=state.episode) for state in states]
