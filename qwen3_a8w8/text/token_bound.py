"""A number of tokens that a text has at least, without reading it as the tokenizer does.

Encoding a long text without breaks takes seconds per megabyte, this a tenth of one. Each byte
of the text counts for 1/L tokens, L being the length of the longest token that could cover it:
one that has any of the four-byte windows around the byte in it. The bytes of a token of n bytes
then count for at most n * 1/n, so their sum is never more than the number of tokens.
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
    """The bound for one vocabulary, which must have a token for every byte of a text."""

    def __init__(self, tokens: Iterable[bytes]) -> None:
        """Looks through the vocabulary, which takes some tenths of a second for 150,000 tokens.

        Args:
            tokens: bytes of every token.
        """
        long_tokens = [token for token in tokens if len(token) >= _WINDOW]
        lengths = np.array([len(token) for token in long_tokens], np.int64)
        # What shares a slot with a longer token's window only makes the bound lower. Shorter
        # tokens than a window are shorter than all that the table has.
        self._longest = np.full(1 << _TABLE_BITS, _WINDOW - 1, np.uint32)
        if not long_tokens:
            return
        data = np.frombuffer(b"".join(long_tokens), np.uint8)
        end_of_token = np.repeat(np.cumsum(lengths), lengths)
        begins = np.flatnonzero(np.arange(len(data)) + _WINDOW <= end_of_token)
        length_at = np.repeat(lengths, lengths).astype(np.uint32)
        np.maximum.at(self._longest, _slots(data)[begins], length_at[begins])

    def min_tokens(self, data: bytes, enough: int) -> int:
        """A number of tokens that a text has at least.

        Args:
            data: the text as the tokenizer reads it.
            enough: more than so many don't matter: the rest of the text isn't looked at then.
        """
        total = Fraction(0)
        for begin in range(0, len(data), _CHUNK):
            end = min(begin + _CHUNK, len(data))
            # With what is around it, so that every window of its bytes is there.
            first = max(0, begin - _WINDOW + 1)
            part = np.frombuffer(data[first : end + _WINDOW - 1], np.uint8)
            cover = self._cover(part)[begin - first : end - first]
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
    """Where each window has its place in the table."""
    num_windows = len(data) - _WINDOW + 1
    windows = np.zeros(num_windows, np.uint32)
    for place in range(_WINDOW):
        windows |= data[place : place + num_windows].astype(np.uint32) << np.uint32(8 * place)
    # Multiplicative hashing; the product wraps.
    windows *= np.uint32(0x9E3779B1)
    windows >>= np.uint32(32 - _TABLE_BITS)
    return windows
