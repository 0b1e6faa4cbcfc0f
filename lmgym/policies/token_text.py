"""The text of every id of a tokenizer, to find the ids at which an engine must stop."""

from __future__ import annotations

import re
from functools import lru_cache

from transformers import PreTrainedTokenizerBase


class TokenText:
    """Maps each id to the text that it adds within a text; an incomplete character is U+FFFD."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        # Some decoders strip the space before the first token: each id is decoded after another one.
        anchor = tokenizer("a", add_special_tokens=False)["input_ids"]
        start = len(str(tokenizer.decode(anchor, skip_special_tokens=False)))
        ids = sorted(tokenizer.get_vocab().values())
        texts = tokenizer.batch_decode([[*anchor, identifier] for identifier in ids], skip_special_tokens=False)
        self.texts = {identifier: text[start:] for identifier, text in zip(ids, texts, strict=True)}
        self._matching: dict[str, frozenset[int]] = {}

    def matching(self, pattern: str) -> frozenset[int]:
        """The ids whose text contains a match of a regular expression."""
        if pattern not in self._matching:
            found = re.compile(pattern).search
            self._matching[pattern] = frozenset(identifier for identifier, text in self.texts.items() if found(text))
        return self._matching[pattern]


@lru_cache(maxsize=8)
def token_text(tokenizer: PreTrainedTokenizerBase) -> TokenText:
    """The token texts of a tokenizer, computed once."""
    return TokenText(tokenizer)
