"""A session with an OpenEnv server: its schema over HTTP, and one environment over a WebSocket.

client ── {"type": "reset" | "step", "data": …} ──► server
       ◄── {"type": "observation", "data": {"observation": …, "reward": …, "done": …}} ──
"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from lmgym.errors import UserError

LARGEST_MESSAGE = 100 * 2**20
"""Bytes of an observation, as in the client of OpenEnv."""

PATIENCE = 2.0
"""Seconds to wait for a session that another episode has just ended."""

_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Result:
    """What an environment returns for a reset or a step."""

    observation: dict[str, Any]
    reward: float
    done: bool


class RefusedActionError(Exception):
    """The server could not read an action, or its environment raised an exception."""


class NoSessionLeftError(UserError):
    """The server has as many sessions as it allows."""


class Session:
    """One environment of a server, from a connection until `close`."""

    def __init__(self, url: str, timeout: float) -> None:
        self.url = url
        self.timeout = timeout
        self._open = contextlib.ExitStack()
        connect = _client().connect
        try:
            connection = connect(
                "ws" + url.removeprefix("http") + "/ws",
                open_timeout=timeout,
                max_size=LARGEST_MESSAGE,
                ping_interval=None,  # the server's own pings are enough
                proxy=None if _is_local(url) else True,
            )
            self._socket = self._open.enter_context(connection)
        except Exception as error:  # of the socket, of TLS, or of the handshake
            raise UserError(f"The OpenEnv server at {url} does not open a session: {error}.") from error

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """None: a clone of an environment opens sessions of its own."""

    def __del__(self) -> None:
        self.close()

    def reset(self, options: dict[str, Any]) -> Result:
        """Starts an episode; the server ignores options that its environment does not have."""
        try:
            return self._ask("reset", options)
        except RefusedActionError as error:
            raise UserError(f"The OpenEnv server at {self.url} cannot start an episode: {error}.") from error

    def step(self, action: dict[str, Any]) -> Result:
        """Takes an action."""
        return self._ask("step", action)

    def close(self) -> None:
        """Ends the session; the server then drops its environment."""
        with contextlib.suppress(Exception):  # the server may have gone, or never been there
            self._socket.send(json.dumps({"type": "close"}))
        self._open.close()

    def _ask(self, kind: str, data: dict[str, Any]) -> Result:
        message = json.dumps({"type": kind, "data": data})
        with contextlib.suppress(
            Exception
        ):  # a server that refuses a session says why and closes it, and reads nothing
            self._socket.send(message)
        try:
            answer = json.loads(self._socket.recv(timeout=self.timeout))
        except Exception as error:  # the connection is lost, the time is over, or it is no JSON
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"The OpenEnv server at {self.url} did not answer a {kind} ({reason}).") from error
        content = answer.get("data", {})
        if answer.get("type") == "error":
            raise self._fault(content)
        reward = content.get("reward")
        return Result(
            content.get("observation", {}), 0.0 if reward is None else float(reward), bool(content.get("done"))
        )

    def _fault(self, content: dict[str, Any]) -> Exception:
        code, message = content.get("code"), str(content.get("message"))
        if code == "CAPACITY_REACHED":
            return NoSessionLeftError(
                f"The OpenEnv server at {self.url} has no session left ({message}): raise its max_concurrent_envs, "
                "or run fewer episodes at once."
            )
        if code not in ("VALIDATION_ERROR", "EXECUTION_ERROR"):
            return UserError(f"The OpenEnv server at {self.url} reports {code}: {message}.")
        details = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in content.get("errors", []))
        return RefusedActionError(f"{message}: {details}" if details else message)


def start_episode(url: str, options: dict[str, Any], timeout: float) -> tuple[Session, Result]:
    """Opens a session and resets its environment; a server may need a moment to end a session that was closed."""
    deadline = time.monotonic() + PATIENCE
    while True:
        session = Session(url, timeout)
        try:
            return session, session.reset(options)
        except NoSessionLeftError:
            session.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def action_schema(url: str, timeout: float) -> dict[str, Any]:
    """The JSON schema of a server's actions."""
    handlers = [urllib.request.ProxyHandler({})] if _is_local(url) else []
    try:
        with urllib.request.build_opener(*handlers).open(f"{url}/schema", timeout=timeout) as answer:
            schema: dict[str, Any] = json.loads(answer.read())["action"]
            return schema
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"There is no OpenEnv server at {url}: {url}/schema gives {error!r:.200}.") from error


def checked_url(url: str) -> str:
    """An http or https address without a final slash."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"{url!r} is not the address of a server: write openenv/http://HOST:PORT, or pass url=.")
    return url.rstrip("/")


def _is_local(url: str) -> bool:
    return urllib.parse.urlsplit(url).hostname in _LOCAL


def _client() -> Any:
    try:
        import websockets.sync.client
    except ImportError as error:
        raise UserError("websockets is not installed: run pip install 'lmgym[openenv]'.") from error
    return websockets.sync.client
