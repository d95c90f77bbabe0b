"""How long the device computed in a step, and how long it waited for its host."""

from __future__ import annotations


class DeviceClock:
    """Adds up dispatches; a step's idle time reaches back to the last work of the step before."""

    def __init__(self) -> None:
        self._busy_s = 0.0
        self._last_end_s: float | None = None
        self._step_end_s: float | None = None

    def add(self, begin_s: float, end_s: float) -> None:
        """Takes in one dispatch."""
        self._busy_s += end_s - begin_s
        self._last_end_s = end_s

    def end_step(self) -> tuple[float, float]:
        """Closes a step.

        Returns:
            Seconds that the device computed in it, and that it waited until its last dispatch
            was done; both 0.0 for a step without a dispatch.
        """
        busy_s, last_end_s = self._busy_s, self._last_end_s
        if last_end_s is None or busy_s == 0.0:
            return 0.0, 0.0
        idle_s = 0.0 if self._step_end_s is None else last_end_s - self._step_end_s - busy_s
        self._step_end_s = last_end_s
        self._busy_s = 0.0
        return busy_s, max(idle_s, 0.0)
