"""What engines of this process share: tickets, rows that wait, and passes until somebody is done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

import torch

from lmgym.engines.engine import Completion, Request
from lmgym.engines.row import Row
from lmgym.models.language_model import LanguageModel


class LocalEngine(ABC):
    """Rows wait in order; a subclass lets them in and moves all that are in by one token per pass."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self._waiting: list[Row] = []
        self._rows: dict[int, Row] = {}
        self._next_ticket = 0

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """Queues requests and gives each a ticket."""
        first = self._next_ticket
        self._next_ticket += len(requests)
        rows = [Row.start(first + place, request) for place, request in enumerate(requests)]
        self._rows |= {row.ticket: row for row in rows}
        self._waiting += rows
        return [row.ticket for row in rows]

    @torch.inference_mode()
    def finished(self, tickets: Collection[int]) -> dict[int, Completion]:
        """Works until at least one of these is done, and gives all of them that are."""
        asked = [ticket for ticket in tickets if ticket in self._rows]
        done: list[int] = []
        while asked and not done:
            done = [ticket for ticket in asked if self._rows[ticket].done]
            if not done:
                self._advance()
        return {ticket: self._rows.pop(ticket).completion for ticket in done}

    def cancel(self, tickets: Collection[int]) -> None:
        """Forgets requests that nobody waits for any more."""
        for ticket in tickets:
            if ticket in self._rows:
                self._rows.pop(ticket).done = True
        self._waiting = [row for row in self._waiting if not row.done]

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Continues every request to its end."""
        tickets = self.submit(requests)
        completions: dict[int, Completion] = {}
        while len(completions) < len(tickets):
            completions |= self.finished([ticket for ticket in tickets if ticket not in completions])
        return [completions[ticket] for ticket in tickets]

    @abstractmethod
    def rest(self) -> None:
        """Gives back its memory, because the weights are about to change; what is in flight will begin again."""

    @abstractmethod
    def _advance(self) -> None:
        """One pass: every row that is in gets its next token."""
