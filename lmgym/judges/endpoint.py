"""A judge behind an OpenAI-compatible endpoint: probabilities of answers from the log-probs of the first token.

chats ── cache on disk ──► known answers
   └── unknown: POST /chat/completions, several at once, tried again when the server is busy ──► cache
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmgym.engines.server.http import RefusedRequestError, ServerUnreachableError, checked_url, get, post
from lmgym.errors import UserError
from lmgym.types import Message

DEADLINE = 60.0
"""Seconds for one answer."""
WAITS = (1.0, 2.0, 4.0)
"""Seconds before each further try."""
CONCURRENCY = 8
TOP_LOGPROBS = 20
"""The most that the interface of OpenAI gives."""
OF_THE_QUESTION = (400, 413, 422)
"""Status codes of a question that the endpoint cannot answer, for instance because it is too long."""
KEY = "OPENAI_API_KEY"
"""The environment variable with the key, if the endpoint needs one."""


class AnswerCache:
    """Probabilities on disk, by a hash of the question; safe for threads and processes."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, check_same_thread=False, timeout=60)
            with self._lock, self._database:
                self._database.execute("CREATE TABLE IF NOT EXISTS answers (question TEXT PRIMARY KEY, found TEXT)")
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"the judge's answers cannot be kept in {path} ({error}): delete that file.") from None

    def get(self, question: str) -> list[float] | None:
        """What was found before."""
        with self._lock:
            row = self._database.execute("SELECT found FROM answers WHERE question = ?", (question,)).fetchone()
        return None if row is None else json.loads(row[0])

    def put(self, question: str, found: list[float]) -> None:
        """Keeps what was found."""
        with self._lock, self._database:
            self._database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (question, json.dumps(found)))


@dataclass
class Endpoint:
    """Asks a model of an endpoint; a question that cannot be answered has the probabilities NaN."""

    url: str
    model: str = ""
    """By default the first model that the endpoint lists."""
    cache: AnswerCache | None = None
    deadline: float = DEADLINE
    waits: Sequence[float] = WAITS
    _tells_apart: dict[str, bool] = field(default_factory=dict)
    """By answers that begin like another one, whether the endpoint writes them as one token."""

    def __post_init__(self) -> None:
        self.url = checked_url(self.url)
        self.model = self.model or self._first_model()

    def __call__(self, chats: Sequence[Sequence[Message]], answers: Sequence[str]) -> Tensor:
        """Probabilities [chats, answers] of the answers, which add up to 1."""
        if not chats:
            return torch.zeros(0, len(answers))
        self.check(answers)
        with ThreadPoolExecutor(CONCURRENCY) as threads:
            found = list(threads.map(lambda chat: self._ask(chat, answers), chats))
        return torch.tensor(found)

    def _ask(self, chat: Sequence[Message], answers: Sequence[str]) -> list[float]:
        question = hashlib.sha256(json.dumps([self.url, self.model, list(chat), list(answers)]).encode()).hexdigest()
        known = self.cache.get(question) if self.cache else None
        if known is not None:
            return known
        try:
            found = read_answer(self._post(chat), answers)
        except ServerUnreachableError:
            return [math.nan] * len(answers)
        except RefusedRequestError as error:
            if error.code not in OF_THE_QUESTION:
                raise
            return [math.nan] * len(answers)
        if self.cache and not math.isnan(found[0]):
            self.cache.put(question, found)
        return found

    def _post(self, chat: Sequence[Message]) -> Any:
        body = {"model": self.model, "messages": list(chat), "max_tokens": 1, "temperature": 0}
        body |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        for wait in (*self.waits, None):
            try:
                return post(self.url, "/chat/completions", body, self.deadline, _headers())
            except ServerUnreachableError:
                if wait is None:
                    raise
                time.sleep(wait)
        raise AssertionError

    def _first_model(self) -> str:
        try:
            return str(get(self.url, "/models", self.deadline, _headers())["data"][0]["id"])
        except ServerUnreachableError as error:
            raise UserError(f"the judge cannot be asked: {error}") from None
        except (KeyError, IndexError, TypeError):
            raise UserError(f"{self.url} lists no models: name one with --judge_model.") from None

    def check(self, answers: Sequence[str]) -> None:
        """Refuses answers such as 1 and 10 if the first token does not tell them apart."""
        for answer in answers:
            if not any(answer != other and answer.startswith(other) for other in answers):
                continue
            if answer not in self._tells_apart:
                probe: Message = {"role": "user", "content": f"Write only this, and nothing else: {answer}"}
                try:
                    first = _first_token(self._post([probe]))
                except ServerUnreachableError as error:
                    raise UserError(f"the judge cannot be asked: {error}") from None
                self._tells_apart[answer] = first == answer
            if not self._tells_apart[answer]:
                raise UserError(
                    f"{self.model} writes {answer} as several tokens, so its probability cannot be read from an "
                    "endpoint: use --judge dimensions or group, or a judge in this process."
                )


def read_answer(response: Any, answers: Sequence[str]) -> list[float]:
    """Probabilities of the answers in a response, from its log-probs or else its text; NaN if it has none of them."""
    try:
        choice = response["choices"][0]
        content = (choice.get("logprobs") or {}).get("content")
        tops = content[0]["top_logprobs"] if content else []
        pairs = [(str(top["token"]), math.exp(min(0.0, float(top["logprob"])))) for top in tops]
        pairs = pairs or [(str(choice["message"]["content"]), 1.0)]
    except (KeyError, IndexError, TypeError, ValueError):
        return [math.nan] * len(answers)
    found = [sum(share for token, share in pairs if _is_answer(token, answer)) for answer in answers]
    total = sum(found)
    return [share / total for share in found] if total > 0 else [math.nan] * len(answers)


def _is_answer(token: str, answer: str) -> bool:
    return token.strip().rstrip(".").lower() == answer.lower()


def _first_token(response: Any) -> str | None:
    try:
        choice = response["choices"][0]
        content = (choice.get("logprobs") or {}).get("content")
        return str(content[0]["token"] if content else choice["message"]["content"]).strip()
    except (KeyError, IndexError, TypeError):
        return None


def _headers() -> dict[str, str]:
    return {"Authorization": f"Bearer {os.environ[KEY]}"} if os.environ.get(KEY) else {}
