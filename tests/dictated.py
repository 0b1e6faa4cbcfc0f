"""An engine whose words are known beforehand."""

from __future__ import annotations

from lmgym.engines.local_engine import LocalEngine
from lmgym.policies.llm_policy import LLMPolicy


class Dictated(LocalEngine):
    """Samples what it is told to, one token per pass, up to stop ids; first requests take the texts in turn.

    A request that goes on, which its draws tell, goes on in the text of its seed.
    """

    def __init__(self, policy: LLMPolicy, *texts: str) -> None:
        super().__init__(policy.model)
        self.texts = [policy.encode(text) for text in texts]
        self.begun = 0
        self.text_of_seed: dict[int, tuple[int, ...]] = {}

    def release_cache(self) -> None:
        """Words that are known beforehand need no cache."""

    def _advance(self) -> None:
        for row in self._waiting:
            seed, draws = row.request.seed, row.request.draws
            if not draws and not row.completion.token_ids:
                self.text_of_seed[seed] = self.texts[self.begun % len(self.texts)]
                self.begun += 1
            text = self.text_of_seed[seed][draws:]
            row.append(text[len(row.completion.token_ids)], -1.0, self.model.eos_ids, self.model.version)
            row.done = row.done or len(row.completion.token_ids) == len(text)
        self._waiting = [row for row in self._waiting if not row.done]
