"""The last failovers of an ingress process, for people who watch the engines."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from deployments.replicas.failover import EngineLost
from qwen3_a8w8.engine.request import TokenEvent

NUM_FAILOVERS = 64
"""Failovers that are kept."""

MAX_REASON = 200


@dataclass(slots=True)
class Failover:
    """One request that lost its engine while it was running.

    Attributes:
        at_s: when that was noticed, as Unix time.
        reason: what the ingress was told.
        num_tokens: output tokens that the request had then.
        outcome: "waiting" for another engine, "resumed" on one, or "ended" without one.
        outage_s: seconds until that outcome, for a resumed one until its next tokens; None while
            it waits.
    """

    at_s: float
    reason: str
    num_tokens: int
    outcome: str = "waiting"
    outage_s: float | None = None


class FailoverLog:
    """Bounded; belongs to one event loop.

    Attributes:
        num_settled: failovers since the start by their outcome, "resumed" or "ended".
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Starts empty.

        Args:
            clock: Unix time in seconds.
        """
        self._clock = clock
        self._entries: deque[Failover] = deque(maxlen=NUM_FAILOVERS)
        self.num_settled: Counter[str] = Counter({"resumed": 0, "ended": 0})

    @contextlib.contextmanager
    def watching(self) -> Iterator[Callable[[TokenEvent | EngineLost], None]]:
        """Follows the stream of one request; call the result with each of its events."""
        num_tokens = 0
        entry: Failover | None = None

        def see(event: TokenEvent | EngineLost) -> None:
            nonlocal num_tokens, entry
            if isinstance(event, TokenEvent):
                num_tokens += len(event.token_ids)
                if entry is not None:
                    self._settle(entry, "resumed")
                    entry = None
            elif entry is None:
                entry = Failover(self._clock(), event.reason[:MAX_REASON], num_tokens)
                self._entries.append(entry)

        try:
            yield see
        finally:
            if entry is not None:
                self._settle(entry, "ended")

    def snapshot(self) -> tuple[Failover, ...]:
        """Copies of the last failovers, the oldest first."""
        return tuple(replace(entry) for entry in self._entries)

    def _settle(self, entry: Failover, outcome: str) -> None:
        entry.outcome = outcome
        self.num_settled[outcome] += 1
        entry.outage_s = max(0.0, self._clock() - entry.at_s)
