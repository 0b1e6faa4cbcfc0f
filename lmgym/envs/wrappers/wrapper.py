"""The base class of wrappers: an environment that passes everything on to another one."""

from __future__ import annotations

from typing import Any

from lmgym.envs.env import Env, Response
from lmgym.types import Finish, Problem, State


class EnvWrapper(Env):
    """Passes actions on to `env`; a subclass changes the opening or the response.

    Attributes that it does not have are those of `env`, such as `answer_form`, `instruction` and `max_steps`.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env.problems)
        self.env = env
        self.concurrency = env.concurrency
        self.max_step_seconds = env.max_step_seconds

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":  # not yet there while the wrapper is being copied
            raise AttributeError(name)
        return getattr(self.env, name)

    def set_iteration(self, iteration: int) -> None:
        """Tells the wrapped environment too."""
        super().set_iteration(iteration)
        self.env.set_iteration(iteration)

    def _reset_inner(self, index: int, seed: int | None) -> None:
        self.env.reset(seed=seed, options={"index": index})

    def opening(self, problem: Problem) -> str:
        """That of the wrapped environment, which has just been reset to this problem."""
        return self.env.state.messages[-1]["content"]

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        """The response of the wrapped environment."""
        self.env._state = self.state
        return self.env.respond(state, text, finish)
