"""The text of every single id of a tokenizer, to say at which ids an engine must stop."""

from __future__ import annotations

import re
from functools import lru_cache

from transformers import PreTrainedTokenizerBase


class TokenText:
    """For each id the text that it adds in the middle of a text; half a character reads as U+FFFD."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        # Some decoders strip the space before the first token: each id is decoded behind another one.
        anchor = tokenizer("a", add_special_tokens=False)["input_ids"]
        start = len(str(tokenizer.decode(anchor, skip_special_tokens=False)))
        ids = sorted(tokenizer.get_vocab().values())
        texts = tokenizer.batch_decode([[*anchor, identifier] for identifier in ids], skip_special_tokens=False)
        self.texts = {identifier: text[start:] for identifier, text in zip(ids, texts, strict=True)}
        self._matching: dict[str, frozenset[int]] = {}

    def matching(self, pattern: str) -> frozenset[int]:
        """The ids in whose text a regular expression is found."""
        if pattern not in self._matching:
            found = re.compile(pattern).search
            self._matching[pattern] = frozenset(identifier for identifier, text in self.texts.items() if found(text))
        return self._matching[pattern]


@lru_cache(maxsize=8)
def token_text(tokenizer: PreTrainedTokenizerBase) -> TokenText:
    """The table of a tokenizer, made once."""
    return TokenText(tokenizer)
