"""JSON over HTTP with a deadline for every call, and errors that name the server and the route."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from types import MappingProxyType
from typing import Any

from lmgym.errors import UserError

TOO_MANY_REQUESTS = 429
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class ServerUnreachableError(Exception):
    """A server that does not answer, or fails: its requests go to another one."""


class RefusedRequestError(UserError):
    """A request that the server refuses, by its status code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class DroppedConnectionError(ServerUnreachableError):
    """A connection that was closed before the answer: the same server may answer the next time."""


def get_text(url: str, route: str, deadline: float) -> str:
    """The answer of a GET request."""
    return _call(url, route, None, deadline)


def get(url: str, route: str, deadline: float, headers: Mapping[str, str] = NO_HEADERS) -> Any:
    """The JSON answer of a GET request."""
    return _parsed(url, route, _call(url, route, None, deadline, headers))


def post(url: str, route: str, body: Any, deadline: float, headers: Mapping[str, str] = NO_HEADERS) -> Any:
    """The JSON answer of a POST request; None if it is empty."""
    return _parsed(url, route, _call(url, route, json.dumps(body).encode(), deadline, headers))


def post_for_text(url: str, route: str, body: Any, deadline: float) -> str:
    """The answer of a POST request that is not JSON."""
    return _call(url, route, json.dumps(body).encode(), deadline)


def checked_url(url: str) -> str:
    """A server's address without a final slash; refuses what is not one."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UserError(f"{url!r} is not the address of a server: give one like http://host:8000.")
    return url.rstrip("/")


def _call(url: str, route: str, body: bytes | None, deadline: float, headers: Mapping[str, str] = NO_HEADERS) -> str:
    request = urllib.request.Request(url + route, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=deadline) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        reason = _reason(error.read().decode(errors="replace"))
        if error.code >= 500 or error.code == TOO_MANY_REQUESTS:
            raise ServerUnreachableError(f"{url} failed at {route} ({error.code}: {reason}); see its log.") from error
        raise RefusedRequestError(f"{url} refuses {route} ({error.code}: {reason}).", error.code) from error
    except (urllib.error.URLError, HTTPException, OSError) as error:
        cause = getattr(error, "reason", None) or error
        if isinstance(cause, ConnectionResetError | BrokenPipeError | HTTPException):
            raise DroppedConnectionError(f"{url} closed the connection: {cause}.") from error
        fault = f"cannot be reached: {cause}."
        if isinstance(cause, TimeoutError):
            fault = f"did not answer {route} within {deadline:.0f} s; see its log."
        raise ServerUnreachableError(f"{url} {fault}") from error


def _parsed(url: str, route: str, text: str) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{url} answers {route} with something that is not JSON; is it an inference server?") from error


def _reason(text: str) -> str:
    """What an error response says, as one short line."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return " ".join(text.split())[:200] or "no reason given"
    while isinstance(found, dict):
        found = found.get("error") or found.get("message") or found.get("detail") or "no reason given"
    return " ".join(str(found).split())[:200]
