"""When the time of sequences is up."""

from __future__ import annotations

import heapq


class Deadlines:
    """Points in time of sequences; of those that have ended it keeps them until they come."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []  # (clock, sequence)

    def add(self, at_s: float, seq_id: int) -> None:
        """Notes that a sequence's time is up at `at_s` on the caller's clock."""
        heapq.heappush(self._heap, (at_s, seq_id))

    def take_due(self, now_s: float) -> list[int]:
        """Removes the sequences whose time is up and gives them, the earliest first."""
        due: list[int] = []
        while self._heap and self._heap[0][0] <= now_s:
            due.append(heapq.heappop(self._heap)[1])
        return due
