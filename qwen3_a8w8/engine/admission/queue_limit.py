"""How much may wait, and when to come back if that is too much already.

The time to come back is measured: at the rate at which sequences have ended, or prompts have
been started, lately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.plan import RunnerCapabilities
from qwen3_a8w8.engine.scheduling.queues import Queues
from qwen3_a8w8.engine.sequence import Sequence
from qwen3_a8w8.errors import CapacityError

_WINDOW = 32


@dataclass(frozen=True, slots=True)
class Room:
    """What an engine could take in at one moment.

    Attributes:
        limit: most sequences that it has at a time, running and waiting.
        free: sequences that it would take in now; 0 as well where too many tokens wait.
        retry_after_s: seconds until one more than that should fit, at the measured rate.
    """

    limit: int
    free: int
    retry_after_s: float


class RateMeter:
    """Amounts per second over the last few events; the caller passes the time."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, float]] = deque(maxlen=_WINDOW)

    def add(self, now_s: float, amount: float = 1.0) -> None:
        """Adds `amount` that happened at `now_s`."""
        self._events.append((now_s, amount))

    def seconds_for(self, amount: float, now_s: float) -> float | None:
        """How long `amount` more takes at the measured rate; None: not enough is known.

        Time that has passed since the last event counts, so a standstill shows.
        """
        if len(self._events) < 2:
            return None
        # What the first event brought came before the time that is measured.
        total = sum(size for _, size in self._events) - self._events[0][1]
        if total <= 0.0:
            return None
        return amount * (now_s - self._events[0][0]) / total


_RETRY_AFTER_S = (1.0, 60.0)


class QueueLimit:
    """Bounds on the sequences of one engine."""

    def __init__(
        self,
        config: EngineConfig,
        capabilities: RunnerCapabilities,
        queues: Queues,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._capabilities = capabilities
        self._queues = queues
        self._clock = clock
        self._ends = RateMeter()
        self._started_tokens = RateMeter()

    @property
    def limit(self) -> int:
        """Most sequences, running and waiting."""
        return self._config.max_running_requests + self._config.max_queued_requests

    @property
    def room(self) -> int:
        """Sequences that fit, as far as their number goes."""
        return self.limit - self._num_active

    def state(self) -> Room:
        """What would fit now."""
        if self._num_excess_tokens(1) > 0:
            return Room(self.limit, 0, self._retry_after_s(self._started_tokens, 1))
        free = max(0, self.room)
        return Room(self.limit, free, self._retry_after_s(self._ends, 1))

    def has_room(self, num_sequences: int, num_tokens: int) -> bool:
        """Whether so many sequences with so many tokens in all would be admitted now."""
        return num_sequences <= self.room and self._num_excess_tokens(num_tokens) <= 0

    def check(self, sequences: list[Sequence]) -> None:
        """Checks that sequences fit.

        Raises:
            CapacityError: they are too many or too long now.
        """
        config = self._config
        num_excess = len(sequences) - self.room
        if num_excess > 0:
            raise CapacityError(
                f"{self._num_active} sequences are running or waiting and {len(sequences)} more "
                f"are asked for, but {self._num_active + self.room} is the limit "
                f"(max_running_requests {config.max_running_requests} + max_queued_requests "
                f"{config.max_queued_requests}); try again later or raise the limits",
                retry_after_s=self._retry_after_s(self._ends, num_excess),
            )
        num_tokens = sum(len(seq.token_ids) for seq in sequences)
        num_excess = self._num_excess_tokens(num_tokens)
        if num_excess > 0:
            raise CapacityError(
                f"{self._queues.num_waiting_tokens} tokens are waiting and {num_tokens} more "
                f"are asked for, but max_queued_tokens is {config.max_queued_tokens}; try again "
                "later or raise it",
                retry_after_s=self._retry_after_s(self._started_tokens, num_excess),
            )

    def count_start(self, num_tokens: int) -> None:
        """Counts a sequence of so many tokens that has left the queue for the first time."""
        self._started_tokens.add(self._clock(), num_tokens)

    def count_end(self) -> None:
        """Counts a sequence that has ended."""
        self._ends.add(self._clock())

    @property
    def _num_active(self) -> int:
        return len(self._queues.waiting) + len(self._queues.running)

    def _num_excess_tokens(self, num_tokens: int) -> int:
        """By how many tokens the queue would be too long with so many more; <= 0: by none."""
        if not self._queues.waiting:
            return 0  # alone it is admitted, however long: it never could be otherwise
        return self._queues.num_waiting_tokens + num_tokens - self._config.max_queued_tokens

    def _retry_after_s(self, meter: RateMeter, num_excess: int) -> float:
        """Seconds until the excess should be gone, at the latest rate."""
        seconds = meter.seconds_for(num_excess, self._clock())
        if seconds is None:
            # Nothing is measured yet: the shortest of the running sequences, step by step.
            running = self._queues.running
            num_left = min((seq.max_tokens - seq.num_output_tokens for seq in running), default=0)
            largest = self._capabilities.decode_batch_sizes[-1]
            seconds = num_left * self._capabilities.decode_step_s[largest]
        low, high = _RETRY_AFTER_S
        return min(max(seconds, low), high)
