"""Incremental detokenizing: new ids in, finished characters out.

Every token stands for fixed bytes, so a stream is an incremental UTF-8 decoder over them: O(1) amortised per token,
never half a character, and the joined pieces equal `Tokenizer.decode` of the whole by construction.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from engine.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """One sequence's output text. The text continues a prompt: a first token's leading space is kept."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """The characters that these ids finish; bytes of an unfinished one are held back."""
        hidden, token_bytes = self._hidden, self._tokenizer.token_bytes
        return self._decoder.decode(b"".join(token_bytes(i) for i in token_ids if i not in hidden))

    def flush(self) -> str:
        """What is held back at the sequence's end: U+FFFD for a character that was never finished, else empty."""
        return self._decoder.decode(b"", final=True)
