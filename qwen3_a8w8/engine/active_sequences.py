"""The sequences that have not ended, and how each of them ends exactly once."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import replace

from qwen3_a8w8.engine.admission.queue_limit import QueueLimit
from qwen3_a8w8.engine.request import FinishReason, TokenEvent
from qwen3_a8w8.engine.scheduling.scheduler import Scheduler
from qwen3_a8w8.engine.sequence import Sequence
from qwen3_a8w8.engine.stats.activity import RecentActivity
from qwen3_a8w8.engine.stats.request_stats import RequestStats
from qwen3_a8w8.errors import EngineDeadError


class Deadlines:
    """Deadlines of sequences; that of one that has ended stays until it is due."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []  # (clock, sequence)

    def add(self, at_s: float, seq_id: int) -> None:
        """Adds a sequence whose time is up at `at_s` on the caller's clock."""
        heapq.heappush(self._heap, (at_s, seq_id))

    def take_due(self, now_s: float) -> list[int]:
        """Removes and returns the sequences whose time is up, the earliest first."""
        due: list[int] = []
        while self._heap and self._heap[0][0] <= now_s:
            due.append(heapq.heappop(self._heap)[1])
        return due


class ActiveSequences:
    """Sequences between their arrival and their end, by id.

    Attributes:
        num_finished: sequences that have ended, by reason.
        requests: how long they took, and how long they are.
        recent: what the last steps and seconds gave.
    """

    def __init__(
        self, scheduler: Scheduler, queue_limit: QueueLimit, clock: Callable[[], float]
    ) -> None:
        self._scheduler = scheduler
        self._queue_limit = queue_limit
        self._clock = clock
        self._sequences: dict[int, Sequence] = {}
        self._deadlines = Deadlines()
        self.num_finished: Counter[str] = Counter()
        self.requests = RequestStats()
        self.recent = RecentActivity(clock)

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(list(self._sequences.values()))

    def __getitem__(self, seq_id: int) -> Sequence:
        return self._sequences[seq_id]

    def get(self, seq_id: int) -> Sequence | None:
        """A sequence, or None if it has ended or never was."""
        return self._sequences.get(seq_id)

    def add(self, seq: Sequence, timeout_s: float | None = None) -> None:
        """Queues a sequence, which ends by itself once `timeout_s` seconds have passed."""
        seq.arrived_s = self._clock()
        self._sequences[seq.seq_id] = seq
        self._scheduler.queues.add(seq)
        if timeout_s is not None:
            self._deadlines.add(seq.arrived_s + timeout_s, seq.seq_id)

    def count_tokens(self, seq: Sequence, num_tokens: int, now_s: float) -> None:
        """Counts tokens that a step has given a sequence."""
        self.recent.count_tokens(seq, num_tokens, now_s)
        self.requests.count_tokens(seq, num_tokens, now_s)

    def end(self, seq: Sequence, finish_reason: FinishReason) -> TokenEvent:
        """Ends a sequence; its blocks are free at once.

        Returns:
            Its last event.
        """
        seq.finish_reason = finish_reason
        self._scheduler.finish(seq)
        del self._sequences[seq.seq_id]
        if not seq.is_canary:
            self.num_finished[finish_reason] += 1
            if finish_reason != "error":
                self.requests.count_end(seq, self._clock())
            self._queue_limit.count_end()
        return TokenEvent(
            seq_id=seq.seq_id,
            finish_reason=finish_reason,
            num_cached_tokens=seq.num_cached_tokens,
        )

    def end_overdue(self) -> list[TokenEvent]:
        """Ends the sequences whose time is up."""
        due = self._deadlines.take_due(self._clock())
        return [
            self.end(self._sequences[seq_id], "timeout")
            for seq_id in due
            if seq_id in self._sequences
        ]

    def end_all(self, error: EngineDeadError, computing: Container[int]) -> list[TokenEvent]:
        """Ends everything because the engine is dead.

        Args:
            error: why.
            computing: sequences that may be the cause.

        Returns:
            One last event per sequence, with the error and whether it may be the cause.
        """
        events: list[TokenEvent] = []
        for seq in self:
            end = self.end(seq, "error")
            if not seq.is_canary:
                own_error = EngineDeadError(
                    str(error), was_computing=error.was_computing and seq.seq_id in computing
                )
                events.append(replace(end, error=own_error))
        return events
