"""A file of the episodes that an environment has played, whoever plays it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lmgym.envs.env import Env, Response
from lmgym.envs.wrappers.wrapper import EnvWrapper
from lmgym.errors import UserError
from lmgym.types import Finish, State


class Recording(EnvWrapper):
    """Appends a line of JSON per finished episode: the problem, the conversation, the rewards and the last info."""

    def __init__(self, env: Env, path: str | Path) -> None:
        super().__init__(env)
        self.path = Path(path)
        self.rewards: list[float] = []
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.open("a").close()
        except OSError as error:
            raise UserError(f"{self.path} cannot be written ({error.strerror}): give another file to record.") from None

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        """The environment's response; the last one of an episode writes its line."""
        response = super().respond(state, text, finish)
        self.rewards = [*(self.rewards if state.turn > 1 else []), response.reward]
        if response.terminated or response.truncated:
            messages: list[Any] = list(state.messages)
            if response.reply:
                messages.append({"role": response.role, "content": response.reply})
            row = {
                "problem": state.problem.id,
                "messages": messages,
                "rewards": self.rewards,
                "truncated": response.truncated,
                "info": response.info,
            }
            with self.path.open("a", encoding="utf-8") as file:  # a single write, so lines of processes do not mix
                file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
        return response
