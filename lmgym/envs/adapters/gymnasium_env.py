"""Any Gymnasium environment with discrete actions: `lmgym.make("gymnasium/FrozenLake-v1", is_slippery=False)`.

observation ── observation_text ──► text ──► policy ──► text ── read ──► number of the action
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from lmgym.envs.adapters.seeds import Seeds
from lmgym.envs.env import Env, Response
from lmgym.envs.games.game import last_line
from lmgym.errors import UserError
from lmgym.types import Finish, Problem, State

ACTION_NAMES: dict[str, tuple[str, ...]] = {
    "FrozenLake-v1": ("left", "down", "right", "up"),
    "FrozenLake8x8-v1": ("left", "down", "right", "up"),
    "CliffWalking-v1": ("up", "right", "down", "left"),
    "CartPole-v1": ("left", "right"),
    "MountainCar-v0": ("left", "none", "right"),
    "Taxi-v4": ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack-v1": ("stick", "hit"),
}
"""Words for the actions of environments that come with Gymnasium; others are numbered."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class GymnasiumEnv(Env):
    """An environment of Gymnasium, played in text; its rewards are the environment's own.

    Further options are those of `gymnasium.make`. An action that cannot be read gets a reply and costs a turn.
    """

    shared_attributes = (*Env.shared_attributes, "options", "observation_text", "actions")

    def __init__(
        self,
        gym_id: str,
        split: str = "train",
        seed: int = 0,
        max_turns: int = 100,
        observation_text: Callable[[Any], str] | None = None,
        actions: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self.gym_id = gym_id
        self.options = options
        self.max_turns = max_turns
        self.observation_text = observation_text
        inner = self._make()
        if not isinstance(inner.action_space, gymnasium.spaces.Discrete):
            raise UserError(f"{gym_id} has the actions {inner.action_space}: only discrete ones can be named in text.")
        self.first_action = int(inner.action_space.start)
        self.actions = tuple(actions) or ACTION_NAMES.get(gym_id, tuple(map(str, range(int(inner.action_space.n)))))
        if len(self.actions) != inner.action_space.n:
            raise UserError(f"{gym_id} has {inner.action_space.n} actions, but {len(self.actions)} names were given.")
        inner.close()
        self.inner: gymnasium.Env[Any, Any] | None = None
        super().__init__(Seeds(f"gymnasium/{gym_id}", split, seed))

    @property
    def instruction(self) -> str:
        """One sentence that says how to write a move, for a system prompt."""
        return f"Write only one of these actions: {', '.join(self.actions)}."

    def opening(self, problem: Problem) -> str:
        """Starts the environment with the seed of the problem."""
        self.inner = self._make()
        observation, _ = self.inner.reset(seed=problem.info["seed"])
        return f"{self.gym_id}:\n{self._shown(observation)}"

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        """Takes the action that the last line names."""
        assert self.inner is not None
        action = self._read(last_line(text))
        is_last = state.turn >= self.max_turns
        if action is None:
            return Response(reply=self.instruction, truncated=is_last or finish == "length", info={"valid": False})
        observation, reward, terminated, truncated, _ = self.inner.step(self.first_action + action)
        truncated = (truncated or is_last) and not terminated
        return Response(float(reward), self._shown(observation), bool(terminated), truncated, {"valid": True})

    def _read(self, move: str) -> int | None:
        """The index of the one action that a move names, or None."""
        words = set(re.findall(r"\w+", move.lower()))
        named = [index for index, name in enumerate(self.actions) if name.lower() in words]
        return named[0] if len(named) == 1 else None

    def _shown(self, observation: Any) -> str:
        if self.observation_text is not None:
            return self.observation_text(observation)
        assert self.inner is not None
        if self.inner.render_mode == "ansi":
            return _marked(str(self.inner.render()))
        if isinstance(observation, np.ndarray):
            return "Observation: " + ", ".join(f"{number:.3g}" for number in observation.ravel())
        return f"Observation: {observation}"

    def _make(self) -> gymnasium.Env[Any, Any]:
        try:
            modes = gymnasium.spec(self.gym_id).make(**self.options).metadata.get("render_modes", [])
            return gymnasium.make(self.gym_id, render_mode="ansi" if "ansi" in modes else None, **self.options)
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise UserError(f"gymnasium/{self.gym_id} cannot be made: {error}") from None


def _marked(rendered: str) -> str:
    """A map without colours; the cell that was coloured, where the player is, stands in brackets."""
    marked = re.sub(r"\x1b\[\d*;?\d*m(\w)\x1b\[0m", r"[\1]", rendered)
    return _COLOUR.sub("", marked).strip()
