"""Another reward for the steps of any environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lmgym.envs.env import Env, Response
from lmgym.envs.wrappers.wrapper import EnvWrapper
from lmgym.rewards.reward import checked_reward
from lmgym.types import Finish, State

Shaping = Callable[[State, str, Response], float]
"""The new reward of a step, from the state after the action, the action's text and the environment's response."""


class RewardShaping(EnvWrapper):
    """Replaces the reward of each step by a function's; `info["rewards"]` of the last step keeps the sum of the old."""

    shared_attributes = (*EnvWrapper.shared_attributes, "shaping")

    def __init__(self, env: Env, shaping: Shaping) -> None:
        super().__init__(env)
        self.shaping = shaping
        self.unshaped = 0.0

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        """The environment's response with the new reward."""
        response = super().respond(state, text, finish)
        self.unshaped = response.reward + (self.unshaped if state.turn > 1 else 0.0)
        info = response.info
        if response.terminated or response.truncated:
            info = {**info, "rewards": {**info.get("rewards", {}), "unshaped": self.unshaped}}
        reward = checked_reward(self.shaping(state, text, response), self.shaping, state.problem)
        return replace(response, reward=reward, info=info)
