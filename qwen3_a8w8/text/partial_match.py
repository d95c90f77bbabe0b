"""Tags that may arrive in pieces."""

from __future__ import annotations


def partial_tail(text: str, tag: str) -> int:
    """Length of the longest end of `text` that is a beginning of `tag`, but not all of it."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
