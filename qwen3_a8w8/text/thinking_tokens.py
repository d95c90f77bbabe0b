"""The tokens allowed in a think block, and the token that ends it.

The block ends at the token `</think>`. Other tokens can spell the same text, and `reasoning.py`,
which reads text, treats it as the end as well: so that the two never differ, tokens that would
complete the spelling are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qwen3_a8w8.text.reasoning import THINK_CLOSE, THINK_OPEN
from qwen3_a8w8.text.tokenizer import Tokenizer

TokenMask = NDArray[np.int32]
"""[ceil(vocab / 32)] int32: token i is bit i % 32 of word i // 32."""


def mask_of(token_ids: Iterable[int], vocab_size: int) -> TokenMask:
    """The mask in which the bits of `token_ids` are set."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


@dataclass(frozen=True, slots=True)
class ThinkingTokens:
    """The think block in token ids of one model.

    Attributes:
        open_id: of `<think>`.
        close_id: of `</think>`.
        opening: mask of `open_id`.
        inside: mask of the tokens allowed in a block: all that have text, except special ones.
        completing: for each prefix of the closing tag, the mask of the tokens that would
            complete it.
        newlines: tokens of one or two newlines, and how many; a model writes them after a block.
        token_bytes: the text of a token.
    """

    open_id: int
    close_id: int
    opening: TokenMask
    inside: TokenMask
    completing: tuple[tuple[bytes, TokenMask], ...]
    newlines: dict[int, int]
    token_bytes: Callable[[int], bytes]

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Collection[int]
    ) -> ThinkingTokens | None:
        """The tokens of a model, or None if it has none for the tags."""
        open_id, close_id = tokenizer.token_id(THINK_OPEN), tokenizer.token_id(THINK_CLOSE)
        if open_id is None or close_id is None:
            return None
        close = THINK_CLOSE.encode()
        texts = {
            token_id: tokenizer.token_bytes(token_id)
            for token_id in range(min(tokenizer.vocab_size, vocab_size))
            if token_id not in tokenizer.special_ids and token_id not in eos_token_ids
        }
        inside = [i for i, text in texts.items() if text and (i == close_id or close not in text)]
        completing = tuple(
            (
                close[:length],
                mask_of((i for i, t in texts.items() if t.startswith(close[length:])), vocab_size),
            )
            for length in range(1, len(close))
        )
        return cls(
            open_id,
            close_id,
            mask_of([open_id], vocab_size),
            mask_of(inside, vocab_size),
            completing,
            {i: len(text) for i, text in texts.items() if text in (b"\n", b"\n\n")},
            tokenizer.token_bytes,
        )

    def allowed_inside(self, tail: bytes) -> TokenMask:
        """Mask of the tokens allowed after `tail`, at least the last 7 bytes of the block."""
        allowed = self.inside
        for prefix, masked in self.completing:
            if tail.endswith(prefix):
                allowed = allowed & ~masked
        return allowed
