"""An engine whose words are known beforehand."""

from __future__ import annotations

from lmgym.engines.local_engine import LocalEngine
from lmgym.policies.llm_policy import LLMPolicy


class Dictated(LocalEngine):
    """Samples what it is told to, one token per pass, and still asks the watcher; requests take the texts in turn."""

    def __init__(self, policy: LLMPolicy, *texts: str) -> None:
        super().__init__(policy.model)
        self.texts = [policy.encode(text) for text in texts]

    def rest(self) -> None:
        """Words that are known beforehand need no memory."""

    def _advance(self) -> None:
        for row in self._waiting:
            text = self.texts[row.ticket % len(self.texts)]
            row.accept(text[sum(row.completion.mask)], -1.0, self.model)
            row.done = row.done or sum(row.completion.mask) == len(text)
        self._waiting = [row for row in self._waiting if not row.done]
