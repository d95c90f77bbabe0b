"""Token ids to text, one at a time, without ever showing half a character.

A byte-level BPE token is a run of bytes, so an incremental UTF-8 decoder over
those bytes is all it takes: each token costs its own length, whatever came
before, and the pieces together are what decoding everything at once gives.
"""

from __future__ import annotations

import codecs

from qwen3_a8w8.text.tokenizer import Tokenizer


class Detokenizer:
    """Incremental detokenizer of one sequence."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._hidden_ids = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """Text that this token completes; bytes of an unfinished character are held back."""
        if token_id in self._hidden_ids:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """The rest: U+FFFD if the sequence ends inside a character, otherwise nothing."""
        return self._decoder.decode(b"", final=True)
