"""Carrying a request over the death of its replica.

The reader keeps what was emitted; whoever takes over gets prompt + emitted ids with
the same seed, and by batch invariance continues as the lost one would have. One
recovery for every fault: a dead actor, replica or node. Knows no Ray: how a stream
is opened is handed in, and every loss arrives as an EngineDeadError.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from deployments.errors import EngineNotReadyError
from deployments.settings import FailoverSettings
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.errors import EngineDeadError

logger = logging.getLogger("ray.serve")

Open = Callable[[EngineRequest], AsyncGenerator[TokenEvent, None]]
"""Sends a request to some replica; its first event says that it was accepted."""

_T = TypeVar("_T")
_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 1.0


class Attempts:
    """Counts what one request may still cost, over all its replicas."""

    def __init__(self, settings: FailoverSettings) -> None:
        self._settings = settings
        self._num_losses = 0
        self._delay_s = _FIRST_DELAY_S
        self._deadline_s = time.monotonic() + settings.timeout_s

    def accepted(self) -> None:
        """A replica has taken the request."""
        self._delay_s = _FIRST_DELAY_S

    def remaining_s(self) -> float:
        """Seconds left to find a replica that takes the request."""
        return max(0.0, self._deadline_s - time.monotonic())

    async def after(self, error: EngineDeadError) -> None:
        """Decides after a failure whether there is another attempt, and waits before it.

        Raises:
            EngineDeadError: attempts or time are used up.
        """
        if not isinstance(error, EngineNotReadyError):
            self._num_losses += 1
            self._deadline_s = time.monotonic() + self._settings.timeout_s
            if self._num_losses > self._settings.max_resumes:
                raise EngineDeadError(
                    f"the request has lost its replica {self._num_losses} times, the limit is "
                    f"failover.max_resumes {self._settings.max_resumes}; last: {error}"
                ) from error
        if self.remaining_s() <= 0.0:
            raise EngineDeadError(
                "no replica has taken the request within failover.timeout_s "
                f"{self._settings.timeout_s:g}; last: {error}"
            ) from error
        logger.warning("looking for another replica: %s", error)
        await asyncio.sleep(min(self._delay_s, self.remaining_s()))
        self._delay_s = min(2 * self._delay_s, _LONGEST_DELAY_S)


async def resumed_stream(
    open_stream: Open, request: EngineRequest, settings: FailoverSettings
) -> AsyncGenerator[TokenEvent, None]:
    """One unbroken stream of a request, over as many replicas as it takes.

    Args:
        open_stream: sends a request to a replica.
        request: has a seed and `n` = 1.
        settings: bounds in attempts and time.

    Yields:
        Events in order, each token once; the first has no tokens and says that the request
        was accepted, the last has a finish reason.

    Raises:
        EngineDeadError: attempts or time are used up.
        Qwen3A8W8Error: what the replica says of the request.
    """
    attempts = Attempts(settings)
    emitted: tuple[int, ...] = request.output_token_ids
    was_accepted = False
    while True:
        try:
            async with aclosing(open_stream(replace(request, output_token_ids=emitted))) as events:
                accepted = await _within(anext(events), attempts.remaining_s())
                attempts.accepted()
                if not was_accepted:
                    was_accepted = True
                    yield accepted
                async for event in events:
                    emitted += event.token_ids
                    yield event
                    if event.finish_reason is not None:
                        return
            raise EngineDeadError("the replica's stream ended without a finish reason")
        except EngineDeadError as error:
            await attempts.after(error)


async def retried(call: Callable[[], Awaitable[_T]], settings: FailoverSettings) -> _T:
    """The result of a call that may be made again whole, because seeds fix its answer.

    Raises:
        EngineDeadError: attempts or time are used up.
    """
    attempts = Attempts(settings)
    while True:
        try:
            return await call()
        except EngineDeadError as error:
            await attempts.after(error)


async def _within(awaitable: Awaitable[_T], timeout_s: float) -> _T:
    try:
        return await asyncio.wait_for(awaitable, timeout_s)
    except asyncio.TimeoutError:
        raise EngineNotReadyError("no replica answered in time") from None
    except StopAsyncIteration:
        raise EngineDeadError("the replica's stream ended before it began") from None
