"""How much one API key may ask of one ingress process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from qwen3_a8w8.errors import RateLimitError

WINDOW_S = 60.0
CONCURRENCY_RETRY_S = 1.0
"""When a place is free again isn't known; a second is what clients wait anyway."""


class KeyLimits:
    """Counts each key's requests: those under way, and those begun in the last minute.

    It belongs to one event loop. A refused request counts for neither limit.
    """

    def __init__(
        self,
        max_concurrent: int | None,
        max_per_minute: int | None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes the counters.

        Args:
            max_concurrent: requests of one key at a time, streams until their end; None: any.
            max_per_minute: requests of one key begun within 60 seconds; None: any.
            clock_s: seconds that only grow.
        """
        self._max_concurrent = max_concurrent
        self._max_per_minute = max_per_minute
        self._clock_s = clock_s
        self._num_running: dict[int, int] = {}
        self._begun_s: dict[int, deque[float]] = {}

    def begin(self, key: int) -> None:
        """Counts a request; `end` has to follow once it is over, however that was.

        Raises:
            RateLimitError: the key has reached a limit.
        """
        num_running = self._num_running.get(key, 0)
        if self._max_concurrent is not None and num_running >= self._max_concurrent:
            raise RateLimitError(
                f"this API key has {num_running} requests under way, the limit is "
                f"{self._max_concurrent}; wait until one has ended",
                retry_after_s=CONCURRENCY_RETRY_S,
            )
        self._count_begun(key)
        self._num_running[key] = num_running + 1

    def end(self, key: int) -> None:
        """A request that was begun is over."""
        self._num_running[key] -= 1

    def _count_begun(self, key: int) -> None:
        if self._max_per_minute is None:
            return
        now_s = self._clock_s()
        begun_s = self._begun_s.setdefault(key, deque())
        while begun_s and begun_s[0] <= now_s - WINDOW_S:
            begun_s.popleft()
        if len(begun_s) >= self._max_per_minute:
            wait_s = begun_s[0] + WINDOW_S - now_s
            raise RateLimitError(
                f"this API key has begun {len(begun_s)} requests in the last {WINDOW_S:g} s, the "
                f"limit is {self._max_per_minute}; send the next in {wait_s:.0f} s",
                retry_after_s=wait_s,
            )
        begun_s.append(now_s)
