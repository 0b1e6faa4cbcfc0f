"""A limit on the turns of an episode."""

from __future__ import annotations

from dataclasses import replace

from lmgym.envs.env import Env, Response
from lmgym.envs.wrappers.wrapper import EnvWrapper
from lmgym.errors import UserError
from lmgym.types import Finish, State


class TurnLimit(EnvWrapper):
    """Truncates an episode after `max_turns` actions."""

    def __init__(self, env: Env, max_turns: int) -> None:
        super().__init__(env)
        if max_turns < 1:
            raise UserError(f"turn_limit is {max_turns}: an episode needs at least one turn.")
        self.turn_limit = max_turns

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        """The environment's response, truncated in the last turn.

        The last line of a step-wise solution is as one whose token budget ran out, so that the solution is graded.
        """
        is_last = state.turn >= self.turn_limit
        response = super().respond(state, text, "length" if is_last and finish == "stop" else finish)
        return replace(response, truncated=True) if is_last and not response.terminated else response
