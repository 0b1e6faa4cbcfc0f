"""A policy defined by a function, for tests and for playing gold solutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lmgym.policies.policy import Policy
from lmgym.types import Action, State


class ScriptedPolicy(Policy):
    """Acts by a function from state to text, or to an `Action` where its finish matters."""

    def __init__(self, script: Callable[[State], str | Action]) -> None:
        self.script = script

    def get_actions(self, states: Sequence[State], temperature: float | None = None) -> list[Action]:
        """Calls the script on every state; the temperature is ignored."""
        outputs = [self.script(state) for state in states]
        actions = [Action(each) if isinstance(each, str) else each for each in outputs]
        return [replace(action, episode=state.episode) for state, action in zip(states, actions, strict=True)]


def gold_line(state: State) -> str:
    """The next line of the problem's own solution."""
    lines = state.problem.solution.split("\n")
    return lines[min(state.turn, len(lines) - 1)]
