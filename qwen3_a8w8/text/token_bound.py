"""A lower bound for the number of tokens of a text, without tokenising it.

Encoding a long text without breaks takes seconds per megabyte, this a tenth of a second. Each
byte of the text counts as 1/L tokens, where L is the length of the longest token that could
cover it: one that contains any of the four-byte windows around the byte. The bytes of a token of
n bytes then count as at most n * 1/n, so their sum never exceeds the number of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

_WINDOW = 4
_TABLE_BITS = 21
_CHUNK = 1 << 20


class TokenBound:
    """The bound for one vocabulary, which must have a token for every byte value."""

    def __init__(self, tokens: Iterable[bytes]) -> None:
        """Scans the vocabulary, which takes some tenths of a second for 150,000 tokens.

        Args:
            tokens: bytes of every token.
        """
        long_tokens = [token for token in tokens if len(token) >= _WINDOW]
        lengths = np.array([len(token) for token in long_tokens], np.int64)
        # A hash collision with a longer token's window only lowers the bound. Tokens shorter
        # than a window are shorter than all in the table.
        self._longest = np.full(1 << _TABLE_BITS, _WINDOW - 1, np.uint32)
        if not long_tokens:
            return
        data = np.frombuffer(b"".join(long_tokens), np.uint8)
        end_of_token = np.repeat(np.cumsum(lengths), lengths)
        starts = np.flatnonzero(np.arange(len(data)) + _WINDOW <= end_of_token)
        length_at = np.repeat(lengths, lengths).astype(np.uint32)
        np.maximum.at(self._longest, _slots(data)[starts], length_at[starts])

    def min_tokens(self, data: bytes, enough: int) -> int:
        """A lower bound for the number of tokens of a text.

        Args:
            data: the text as the tokenizer receives it.
            enough: the scan stops when the bound exceeds this.
        """
        total = Fraction(0)
        for start in range(0, len(data), _CHUNK):
            end = min(start + _CHUNK, len(data))
            # With the bytes around it, so that every window over its bytes is complete.
            first = max(0, start - _WINDOW + 1)
            part = np.frombuffer(data[first : end + _WINDOW - 1], np.uint8)
            cover = self._cover(part)[start - first : end - first]
            for length, count in enumerate(np.bincount(cover).tolist()):
                if count:
                    total += Fraction(count, length)
            if total > enough:
                break
        return -(-total.numerator // total.denominator)

    def _cover(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
        """For each byte the length of the longest token that could cover it."""
        num_windows = len(data) - _WINDOW + 1
        padded = np.full(len(data) + _WINDOW - 1, _WINDOW - 1, np.uint32)
        if num_windows > 0:
            padded[_WINDOW - 1 : _WINDOW - 1 + num_windows] = self._longest[_slots(data)]
        cover = padded[: len(data)]
        for shift in range(1, _WINDOW):
            cover = np.maximum(cover, padded[shift : shift + len(data)])
        return cover


def _slots(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """The table slot of each window."""
    num_windows = len(data) - _WINDOW + 1
    windows = np.zeros(num_windows, np.uint32)
    for place in range(_WINDOW):
        windows |= data[place : place + num_windows].astype(np.uint32) << np.uint32(8 * place)
    # Multiplicative hashing; the product wraps around.
    windows *= np.uint32(0x9E3779B1)
    windows >>= np.uint32(32 - _TABLE_BITS)
    return windows
