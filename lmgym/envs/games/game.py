"""A game: the policy writes a move, the game replies, until it is won, lost or out of turns."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmgym.envs.env import Env, Response
from lmgym.errors import UserError
from lmgym.types import Finish, Problem, State

_LAST_LINE = re.compile(r"[^\n]*\S[^\n]*\Z")


@dataclass(frozen=True)
class Turn:
    """What a game says to a move."""

    reply: str
    won: bool = False
    lost: bool = False
    valid: bool = True
    """Whether the move could be read and is allowed; one that is not costs a turn."""


class Game(Env):
    """A game; a subclass implements `play`, its answer to a move.

    The last line of an action is the move, so a policy may think before it. A win is worth 1, and `speed_bonus` more if
    it took a single turn, falling to none in the last one.
    """

    instruction: str = ""
    """One sentence that says how to write a move, for a system prompt."""

    def __init__(self, problems: Sequence[Problem], max_turns: int, speed_bonus: float = 0.0) -> None:
        super().__init__(problems)
        if max_turns < 1:
            raise UserError(f"max_turns is {max_turns}: a game needs at least one turn.")
        self.max_turns = max_turns
        self.speed_bonus = speed_bonus

    @abstractmethod
    def play(self, problem: Problem, moves: Sequence[str], move: str) -> Turn:
        """The answer to a move; `moves` are those before it."""

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        """Plays the last line of the action; an action that reached its token budget loses the game."""
        moves = [last_line(message["content"]) for message in state.messages if message["role"] == "assistant"]
        turn = self.play(state.problem, moves[:-1], moves[-1])
        is_last = len(moves) >= self.max_turns
        truncated = finish == "length" and not turn.won
        terminated = turn.won or turn.lost or (is_last and not truncated)
        info: dict[str, Any] = {"valid": turn.valid}
        if terminated or truncated:
            info |= {"correct": turn.won, "turns": len(moves), "final": True}
        bonus = self.speed_bonus * (self.max_turns - len(moves)) / max(self.max_turns - 1, 1)
        return Response(
            reward=1.0 + bonus if turn.won else 0.0,
            reply=turn.reply,
            terminated=terminated,
            truncated=truncated,
            info=info,
        )


def last_line(text: str) -> str:
    """The last line that is not empty, without spaces around it."""
    match = _LAST_LINE.search(text.rstrip())
    return match[0].strip() if match else ""
