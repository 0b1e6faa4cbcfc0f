"""A policy that says what it was told to, for tests and for playing gold solutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lmgym.policies.policy import Policy
from lmgym.types import Action, State


class ScriptedPolicy(Policy):
    """Acts by a function from state to text."""

    def __init__(self, script: Callable[[State], str]) -> None:
        self.script = script

    def get_actions(self, states: Sequence[State], temperature: float | None = None) -> list[Action]:
        """Asks the script in every state; a script has no temperature."""
        return [Action(self.script(state), episode=state.episode) for state in states]


def gold_line(state: State) -> str:
    """The next line of the problem's own solution."""
    lines = state.problem.solution.split("\n")
    return lines[min(state.turn, len(lines) - 1)]
