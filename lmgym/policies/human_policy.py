"""A human at the keyboard."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lmgym.policies.policy import Policy
from lmgym.types import Action, State


class HumanPolicy(Policy):
    """Gets every action from `ask`, which shows the state to a person and returns their line."""

    def __init__(self, ask: Callable[[State], str]) -> None:
        self.ask = ask

    def get_actions(self, states: Sequence[State], temperature: float | None = None) -> list[Action]:
        """Asks for one action after the other; the temperature is ignored."""
        return [Action(self.ask(state) + "\n", episode=state.episode) for state in states]
