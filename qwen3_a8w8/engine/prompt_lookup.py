"""Draft tokens for a sequence, looked up in its own tokens.

Text that is edited, quoted or summarised repeats itself: where the newest tokens
have occurred before, what followed then is a good guess of what follows now. A
wrong draft token costs a little time and changes nothing.
Source: Saxena 2023, "Prompt Lookup Decoding".
"""

from __future__ import annotations

from collections.abc import Sequence

NGRAM_SIZES = (4, 3, 2)
"""Lengths of the runs of tokens that are looked up, the most telling first."""


class PromptLookup:
    """An index of one sequence's runs of tokens; grows as the sequence does."""

    def __init__(self) -> None:
        self._next_position: dict[tuple[int, ...], int] = {}  # run -> where its newest one ended
        self._num_indexed = 0

    def propose(self, token_ids: Sequence[int], max_drafts: int) -> tuple[int, ...]:
        """Tokens that may come next.

        Args:
            token_ids: all tokens of the sequence; since the last call, some may have been added
                at the end.
            max_drafts: most tokens to propose.

        Returns:
            What followed the latest earlier occurrence of the longest run of newest tokens that
            has one, or nothing. Past the end it goes on periodically.
        """
        end = len(token_ids)
        # The runs that end in the newest token stay out: they would only find themselves.
        for position in range(self._num_indexed + 1, end):
            for size in NGRAM_SIZES:
                if size <= position:
                    run = tuple(token_ids[position - size : position])
                    self._next_position[run] = position
        self._num_indexed = max(self._num_indexed, end - 1)
        for size in NGRAM_SIZES:
            start = self._next_position.get(tuple(token_ids[end - size :])) if size < end else None
            if start is not None:
                known = token_ids[start : start + max_drafts]
                return tuple(known[i % len(known)] for i in range(max_drafts))
        return ()
