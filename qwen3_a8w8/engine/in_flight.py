"""Steps that were sent to the runner and whose results aren't in."""

from __future__ import annotations

from collections import deque

from qwen3_a8w8.engine.draft import ScheduledStep
from qwen3_a8w8.engine.plan import StepPlan
from qwen3_a8w8.errors import EngineDeadError


class InFlight:
    """The steps, oldest first; results come in this order.

    When one fails, those sent after it are lost: they were planned on what it was to do.
    """

    def __init__(self) -> None:
        self._steps: deque[ScheduledStep] = deque()
        self._num_lost = 0

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def has_lost(self) -> bool:
        """Whether a step is in flight whose result will be of no use."""
        return self._num_lost > 0

    @property
    def seq_ids(self) -> set[int]:
        """Sequences that are being computed."""
        return {seq_id for step in self._steps for seq_id in step.plan.seq_ids}

    def push(self, step: ScheduledStep) -> None:
        """Adds a step that is being sent."""
        self._steps.append(step)

    def take(self, step_id: int) -> ScheduledStep | None:
        """Removes the oldest step, whose result is in; None if it was lost.

        Raises:
            EngineDeadError: the oldest step isn't the one named.
        """
        step = self._steps[0] if self._steps else None
        if step is None or step.plan.step_id != step_id:
            expected = "no result" if step is None else f"that of step {step.plan.step_id}"
            raise EngineDeadError(f"got the result of step {step_id}, expected {expected}")
        self._steps.popleft()
        if self._num_lost == 0:
            return step
        self._num_lost -= 1
        return None

    def fail(self, step_id: int) -> list[StepPlan]:
        """Removes the oldest step, which has failed; the others are lost with it.

        Returns:
            Its plan and theirs; nothing if it was lost itself.

        Raises:
            EngineDeadError: the oldest step isn't the one named.
        """
        step = self.take(step_id)
        if step is None:
            return []
        self._num_lost = len(self._steps)
        return [step.plan, *(later.plan for later in self._steps)]

    def clear(self) -> None:
        """Forgets all of them."""
        self._steps.clear()
        self._num_lost = 0
