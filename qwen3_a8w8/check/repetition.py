"""Finds repetitive outputs: one token repeated, or a phrase in a loop."""

from __future__ import annotations

from collections.abc import Sequence

MAX_RUN = 8
"""More equal tokens in a row than this count as a run."""

MIN_LOOPS = 3
"""A phrase of several tokens that occurs this many times in a row is a loop."""

MIN_LOOP_TOKENS = 12
"""Least length of the whole loop: "no, no, no" isn't a defect."""

_MAX_PHRASE = 64


def find_repetition(token_ids: Sequence[int]) -> str | None:
    """Describes the first repetition.

    Args:
        token_ids: one output.

    Returns:
        For example "token 12 x 30 from 5" or "phrase of 4 tokens x 6 from 20"; None without one.
    """
    return _run(token_ids) or _loop(token_ids)


def _run(ids: Sequence[int]) -> str | None:
    start = 0
    for i in range(1, len(ids) + 1):
        if i < len(ids) and ids[i] == ids[start]:
            continue
        if i - start > MAX_RUN:
            return f"token {ids[start]} x {i - start} from {start}"
        start = i
    return None


def _loop(ids: Sequence[int]) -> str | None:
    for size in range(2, min(_MAX_PHRASE, len(ids) // MIN_LOOPS) + 1):
        # Tokens in a row that equal the token one phrase earlier.
        equal = 0
        for i in range(size, len(ids) + 1):
            if i < len(ids) and ids[i] == ids[i - size]:
                equal += 1
                continue
            loops = equal // size + 1
            if loops >= MIN_LOOPS and equal + size >= MIN_LOOP_TOKENS:
                return f"phrase of {size} tokens x {loops} from {i - equal - size}"
            equal = 0
    return None
