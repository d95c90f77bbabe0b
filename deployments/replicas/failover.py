"""Failover: a request continues on another replica when its own is lost.

The ingress keeps what was emitted; the next replica gets prompt + emitted ids with the same
seed, and by batch invariance continues as the lost one would have. One recovery for every
fault: a crashed actor, replica or node. Doesn't import Ray: how a stream is opened is passed in,
and every loss arrives as an EngineDeadError.

A request that crashes its engines must not take all of them down. A crash counts against the
request if it was being computed then, until it has given some tokens elsewhere. See
`engine/recovery.py` for how it is isolated from its neighbours.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TypeVar

from deployments.settings import FailoverSettings
from qwen3_a8w8.engine.recovery import ISOLATION_TOKENS
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.errors import EngineDeadError, EngineNotReadyError, RequestFailedError

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True, slots=True)
class EngineLost:
    """In a stream of events: its engine is lost, and it waits for another one.

    Attributes:
        reason: what is known of the loss, in one line.
    """

    reason: str = field(default="", compare=False)


Open = Callable[[EngineRequest], AsyncGenerator[TokenEvent, None]]
"""Sends a request to some replica; the first event says that it was accepted."""

_T = TypeVar("_T")
_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 1.0
_LEAST_TIMEOUT_S = 1e-3


class Attempts:
    """The attempts that one request may still make, over all its replicas.

    Attributes:
        num_engine_crashes: times in a row that an engine has crashed while it computed the request.
    """

    def __init__(self, settings: FailoverSettings) -> None:
        self._settings = settings
        self._num_losses = 0
        self._num_tokens = 0
        self._delay_s = _FIRST_DELAY_S
        self._deadline_s = time.monotonic() + settings.timeout_s
        self.num_engine_crashes = 0

    def accepted(self) -> None:
        """A replica has taken the request."""
        self._delay_s = _FIRST_DELAY_S
        self._num_tokens = 0

    def progressed(self, num_tokens: int) -> None:
        """Counts tokens of the request; after `ISOLATION_TOKENS` it isn't blamed any more."""
        self._num_tokens += num_tokens
        if self._num_tokens >= ISOLATION_TOKENS:
            self.num_engine_crashes = 0

    def remaining_s(self) -> float:
        """Seconds left to find a replica that takes the request."""
        return max(0.0, self._deadline_s - time.monotonic())

    def count(self, error: EngineDeadError) -> None:
        """Decides after a failure whether there is another attempt.

        Raises:
            RequestFailedError: the request itself seems to crash its engines.
            EngineDeadError: attempts or time are used up.
        """
        logger.warning("looking for another replica: %s", error)
        if not isinstance(error, EngineNotReadyError):
            self._count_loss(error)
        if self.remaining_s() <= 0.0:
            raise EngineDeadError(
                "no replica has taken the request within failover.timeout_s "
                f"{self._settings.timeout_s:g}; try again later, the server's log says more"
            ) from error

    async def pause(self) -> None:
        """Waits before the next attempt, longer each time."""
        await asyncio.sleep(min(self._delay_s, self.remaining_s()))
        self._delay_s = min(2 * self._delay_s, _LONGEST_DELAY_S)

    def _count_loss(self, error: EngineDeadError) -> None:
        settings = self._settings
        self._num_losses += 1
        self._deadline_s = time.monotonic() + settings.timeout_s
        if error.was_computing:
            self.num_engine_crashes += 1
        if self.num_engine_crashes > settings.max_engine_crashes:
            raise RequestFailedError(
                f"the request was ended because its engine has crashed {self.num_engine_crashes} "
                "times in a row while it was computed; the limit is failover.max_engine_crashes "
                f"{settings.max_engine_crashes}, the server's log says more"
            ) from error
        if self._num_losses > settings.max_resumes:
            raise EngineDeadError(
                f"the request has lost its replica {self._num_losses} times, the limit is "
                f"failover.max_resumes {settings.max_resumes}; the server's log says more"
            ) from error


def with_time_left(request: EngineRequest, began_s: float) -> EngineRequest:
    """The request with what is left of its `timeout_s`.

    Args:
        request: as it was at first.
        began_s: when that was, by `time.monotonic`.
    """
    if request.timeout_s is None:
        return request
    # With next to nothing left the engine ends it at once, as any other whose time is up.
    left_s = began_s + request.timeout_s - time.monotonic()
    return replace(request, timeout_s=max(left_s, _LEAST_TIMEOUT_S))


async def resumed_stream(
    open_stream: Open, request: EngineRequest, settings: FailoverSettings
) -> AsyncGenerator[TokenEvent | EngineLost, None]:
    """One unbroken stream of a request, over as many replicas as it takes.

    Args:
        open_stream: sends a request to a replica.
        request: has a seed and `n` = 1.
        settings: bounds in attempts and time.

    Yields:
        Events in order, each token once; the first has no tokens and says that the request
        was accepted, the last has a finish reason. An EngineLost where it then waits for another
        replica.

    Raises:
        RequestFailedError: the request can't be computed, or it crashes its engines.
        EngineDeadError: attempts or time are used up.
        Qwen3A8W8Error: as the replica raised it.
    """
    attempts = Attempts(settings)
    began_s = time.monotonic()
    emitted: tuple[int, ...] = request.output_token_ids
    was_accepted = False
    while True:
        try:
            attempt = replace(
                with_time_left(request, began_s),
                output_token_ids=emitted,
                num_engine_crashes=attempts.num_engine_crashes,
            )
            async with aclosing(open_stream(attempt)) as events:
                accepted = await _within(anext(events), attempts.remaining_s())
                attempts.accepted()
                if not was_accepted:
                    was_accepted = True
                    yield accepted
                async for event in events:
                    emitted += event.token_ids
                    attempts.progressed(len(event.token_ids))
                    yield event
                    if event.finish_reason is not None:
                        return
            raise EngineDeadError("the replica's stream ended without a finish reason")
        except EngineDeadError as error:
            attempts.count(error)
            reason = (str(error).splitlines() or [""])[0]
        if was_accepted:
            yield EngineLost(reason)
        await attempts.pause()


async def retried(call: Callable[[], Awaitable[_T]], settings: FailoverSettings) -> _T:
    """The result of a call that may be repeated whole, because seeds fix its answer.

    Raises:
        RequestFailedError: the call seems to crash its engines.
        EngineDeadError: attempts or time are used up.
    """
    attempts = Attempts(settings)
    while True:
        try:
            return await call()
        except EngineDeadError as error:
            attempts.count(error)
        await attempts.pause()


async def _within(awaitable: Awaitable[_T], timeout_s: float) -> _T:
    try:
        return await asyncio.wait_for(awaitable, timeout_s)
    except asyncio.TimeoutError:
        raise EngineNotReadyError("no replica answered in time") from None
    except StopAsyncIteration:
        raise EngineDeadError("the replica's stream ended before it began") from None
