"""A fake engine whose steps a test lets go on one by one."""

import asyncio
from collections import deque

from tests.support.fake_deployment import FakeEngine


class HeldEngine(FakeEngine):
    """Answers no step until it is allowed to."""

    def __init__(self, capabilities, config=None):
        super().__init__(capabilities, config)
        self._plans = deque()
        self._num_allowed = 0
        self._is_open = False

    @property
    def num_held(self) -> int:
        """Steps that wait."""
        return len(self._plans)

    def allow(self, num_steps: int) -> None:
        """Lets so many more steps go on."""
        self._num_allowed += num_steps
        self._release()

    def open(self) -> None:
        """Lets all steps go on from now on."""
        self._is_open = True
        self._release()

    def close_gate(self) -> None:
        """Holds the steps from now on."""
        self._is_open, self._num_allowed = False, 0

    def _send(self, plan) -> None:
        self._plans.append(plan)
        self._release()

    def _release(self) -> None:
        while self._plans and (self._is_open or self._num_allowed > 0):
            self._num_allowed -= not self._is_open
            asyncio.get_running_loop().call_soon(self._answer, self._plans.popleft())
