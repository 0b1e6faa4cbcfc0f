"""An environment of an OpenEnv server: `lmgym.make("openenv/http://localhost:8000")`.

observation ── observation_text ──► text ──► policy ──► text ── action ──► fields of the server's action
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from lmgym.envs.adapters.openenv_session import RefusedActionError, Session, action_schema, checked_url, start_episode
from lmgym.envs.adapters.seeds import Seeds
from lmgym.envs.env import Env, Response
from lmgym.envs.games.game import last_line
from lmgym.errors import UserError
from lmgym.lookup import import_named
from lmgym.types import Finish, Problem, State

LONGEST_FAULT = 500
"""Characters of an error of the server that the policy is told."""


class OpenEnv(Env):
    """An environment that an OpenEnv server runs, one session per episode; rewards are the environment's own.

    An action of one text field is the whole message; any other is JSON in its last line, and an observation is its
    fields. `action` (text to fields) and `observation_text` (fields to text) replace both. Further options are passed
    to the environment's reset.
    """

    concurrency = 16
    shared_attributes = (*Env.shared_attributes, "fields", "action", "observation_text", "options")

    def __init__(
        self,
        url: str,
        split: str = "train",
        seed: int = 0,
        max_turns: int = 100,
        prompt: str = "",
        action: str | Callable[[str], dict[str, Any]] | None = None,
        observation_text: str | Callable[[dict[str, Any]], str] | None = None,
        timeout: float = 60.0,
        **options: Any,
    ) -> None:
        if max_turns < 1:
            raise UserError(f"max_turns is {max_turns}: an episode needs at least one turn.")
        self.url = checked_url(url)
        self.max_turns = max_turns
        self.prompt = prompt
        self.action = import_named(action) if isinstance(action, str) else action
        self.observation_text = (
            import_named(observation_text) if isinstance(observation_text, str) else observation_text
        )
        self.timeout = timeout
        self.options = options
        schema = action_schema(self.url, timeout)
        self.fields = {name: field for name, field in schema.get("properties", {}).items() if name != "metadata"}
        self.session: Session | None = None
        super().__init__(Seeds(f"openenv/{self.url}", split, seed))

    @property
    def instruction(self) -> str:
        """One sentence that says how to write an action, for a system prompt."""
        if self.action is not None or self._is_text():
            return ""
        if len(self.fields) == 1:
            return f"The last line of your message is your action: {_described(*self.fields.items())}."
        return f"The last line of your message is your action, a JSON object with {_described(*self.fields.items())}."

    def opening(self, problem: Problem) -> str:
        """Opens a session and resets its environment with the seed of the problem."""
        self.close()
        options = {**self.options, "seed": problem.info["seed"]}
        self.session, result = start_episode(self.url, options, self.timeout)
        if result.done:
            raise UserError(f"The environment at {self.url} ended an episode before the first action.")
        return "\n\n".join(text for text in (self.prompt, self._shown(result.observation)) if text) or "Begin."

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        """Takes the action; one that cannot be read gets a reply and costs a turn."""
        assert self.session is not None
        is_last = state.turn >= self.max_turns
        try:
            result = self.session.step(self._read(text))
        except RefusedActionError as error:
            reply = f"{error}"[:LONGEST_FAULT]
            return self._responded(Response(0.0, reply, False, is_last or finish == "length", {"valid": False}))
        truncated = is_last and not result.done
        reply = self._shown(result.observation) or "Continue."
        return self._responded(Response(result.reward, reply, result.done, truncated, {"valid": True}))

    def close(self) -> None:
        """Ends the session of an episode that still runs."""
        if self.session is not None:
            self.session.close()
            self.session = None

    def _responded(self, response: Response) -> Response:
        """Ends the session with the episode: servers limit the sessions that are open."""
        if response.terminated or response.truncated:
            self.close()
        return response

    def _is_text(self) -> bool:
        return len(self.fields) == 1 and next(iter(self.fields.values())).get("type") == "string"

    def _read(self, text: str) -> dict[str, Any]:
        """The fields of an action."""
        if self.action is not None:
            try:
                return self.action(text)
            except ValueError as error:
                raise RefusedActionError(f"This action cannot be read: {error}.") from error
        text = text.encode(errors="replace").decode()  # JSON in UTF-8 has no half of a surrogate pair
        if self._is_text():
            return {next(iter(self.fields)): text}
        try:
            value = json.loads(last_line(text))
        except (ValueError, RecursionError):
            raise RefusedActionError(self.instruction) from None
        if len(self.fields) == 1 and not isinstance(value, dict):
            return {next(iter(self.fields)): value}
        if not isinstance(value, dict):
            raise RefusedActionError(self.instruction)
        return value

    def _shown(self, observation: dict[str, Any]) -> str:
        """The text of an observation: that of its only text, or a line for each field."""
        if self.observation_text is not None:
            return self.observation_text(observation)
        told = {name: value for name, value in observation.items() if value not in (None, "", [], {})}
        if len(told) == 1 and isinstance(text := next(iter(told.values())), str):
            return text
        return "\n".join(
            f"{name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in told.items()
        )


def _described(*fields: tuple[str, dict[str, Any]]) -> str:
    """The names of fields and their types."""
    return ", ".join(f'"{name}" ({field.get("type", "see the prompt")})' for name, field in fields)
