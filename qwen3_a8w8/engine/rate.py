"""How fast something happens, by the last times it happened."""

from __future__ import annotations

from collections import deque

_WINDOW = 32


class RateMeter:
    """Amounts per second over the last few events; knows no clock, it is told the time."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, float]] = deque(maxlen=_WINDOW)

    def add(self, now_s: float, amount: float = 1.0) -> None:
        """Takes note that `amount` more happened at `now_s`."""
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
