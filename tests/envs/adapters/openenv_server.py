"""Servers of OpenEnv for test_openenv_env.py, run by a Python that has the package; prints their ports as JSON."""

import asyncio
import json
import random
import socket
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app


class Message(Action):
    message: str


class Move(Action):
    row: int
    column: int


class Number(Action):
    number: int


class Hint(Observation):
    text: str = ""


class Board(Observation):
    cells: list[int] = []  # noqa: RUF012
    note: str = ""


class Guessing(Environment):
    """Guess a number from 1 to `largest`."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, largest: int = 20, **options: Any
    ) -> Observation:
        self.secret = random.Random(seed).randint(1, largest)
        return Hint(text=f"Guess a number from 1 to {largest}.")

    def step(self, action: Any, timeout_s: float | None = None, **options: Any) -> Observation:
        guess = action.number if isinstance(action, Number) else int(action.message)
        hint = "Right." if guess == self.secret else "Lower." if guess > self.secret else "Higher."
        return Hint(text=hint, reward=float(guess == self.secret), done=guess == self.secret)

    @property
    def state(self) -> State:
        return State()


class Walking(Guessing):
    """Two fields in an action, two in an observation, and a reward for each step."""

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, largest: int = 3, **options: Any
    ) -> Observation:
        return Board(cells=[0, 0], note=f"Reach {largest}.")

    def step(self, action: Any, timeout_s: float | None = None, **options: Any) -> Observation:
        return Board(cells=[action.row, action.column], reward=action.row / 2, done=action.row == 3)


KINDS = {
    "message": (Guessing, Message, Hint, 16),
    "one session": (Guessing, Message, Hint, 1),
    "number": (Guessing, Number, Hint, 16),
    "move": (Walking, Move, Board, 16),
}


async def main() -> None:
    servers, ports = [], {}
    for name, (env, action, observation, sessions) in KINDS.items():
        app = create_app(env, action, observation, env_name=name, max_concurrent_envs=sessions)
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        ports[name] = listener.getsockname()[1]
        servers.append(uvicorn.Server(uvicorn.Config(app, log_level="error")).serve(sockets=[listener]))
    print(json.dumps(ports), flush=True)  # noqa: T201
    await asyncio.gather(*servers)


if __name__ == "__main__":
    asyncio.run(main())
