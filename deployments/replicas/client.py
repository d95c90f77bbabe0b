"""The ingress's way to the engine replicas, over a Serve handle, with failover.

Turns everything that Ray and Serve raise into this project's errors: the replica's own error
where it raised one, EngineDeadError where it is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

from deployments.replicas.admission import Admission, Places
from deployments.replicas.failover import EngineLost, resumed_stream, retried, with_time_left
from deployments.replicas.failover_log import FailoverLog
from deployments.replicas.report import ReplicaActivity, ReplicaReport
from deployments.settings import FailoverSettings
from qwen3_a8w8.engine.admission.queue_limit import Room
from qwen3_a8w8.engine.plan import RunnerCapabilities
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.errors import CapacityError, EngineDeadError, EngineNotReadyError

ROOM_TIMEOUT_S = 1.0
"""Seconds that replicas have to say whether they have room; then a request goes to one of them."""

_T = TypeVar("_T")


class ReplicaClient:
    """`EngineClient` over the handle of the `EngineReplica` deployment."""

    def __init__(self, handle: Any, settings: FailoverSettings) -> None:
        self._handle = handle
        self._stream_handle = handle.options(stream=True)
        self._settings = settings
        self._capabilities: RunnerCapabilities | None = None
        self._admission = Admission(self.rooms)
        self._failovers = FailoverLog()

    @property
    def admission(self) -> Admission:
        """Decides whether the engines have room."""
        return self._admission

    @property
    def failovers(self) -> FailoverLog:
        """The last failovers of streams."""
        return self._failovers

    async def stream(
        self, request: EngineRequest, places: Places | None = None
    ) -> AsyncGenerator[TokenEvent | EngineLost, None]:
        """Runs a request with a seed and `n` = 1; see `failover.resumed_stream`.

        Args:
            request: the request.
            places: one of which it takes; None: nobody has asked whether there is room.
        """
        with (
            self._admission.counted(1, places) as accepted,
            self._failovers.watching() as see,
        ):
            events = resumed_stream(self._open, request, self._settings)
            async with aclosing(events):
                async for event in events:
                    accepted()
                    see(event)
                    yield event

    async def generate_batch(
        self, requests: list[EngineRequest], places: Places | None = None
    ) -> list[TokenEvent]:
        """Runs 1 or 16 seeded requests as one batch, again from the start where a replica is lost.

        Args:
            requests: the requests.
            places: of which it takes as many; None: nobody has asked whether there is room.

        Returns:
            One event for each request, in their order, with its whole output.

        Raises:
            UnsupportedBatchSizeError: another number of requests.
            InvalidRequestError: a request can't be served.
            CapacityError: the queue is full.
            RequestFailedError: a request can't be computed, or the batch crashes its engines.
            EngineDeadError: attempts or time are used up.
        """
        began_s = time.monotonic()

        async def attempt() -> list[TokenEvent]:
            left = [with_time_left(request, began_s) for request in requests]
            batch = self._stream("start_batch", left, is_last=bool)
            outputs: list[TokenEvent] = []
            async with aclosing(batch) as answers:
                async for answer in answers:
                    accepted()
                    outputs = answer
            if not outputs:
                raise EngineDeadError("the replica's stream ended without the batch's outputs")
            return outputs

        with self._admission.counted(len(requests), places) as accepted:
            return await retried(attempt, self._settings)

    async def capabilities(self) -> RunnerCapabilities:
        """What the runners can do; asked once.

        Raises:
            EngineDeadError: no replica has answered in time.
        """
        if self._capabilities is not None:
            return self._capabilities
        capabilities: RunnerCapabilities = await retried(
            lambda: self._call("capabilities", timeout_s=self._settings.timeout_s),
            self._settings,
        )
        self._capabilities = capabilities
        return capabilities

    async def reports(self, timeout_s: float) -> list[ReplicaReport]:
        """The reports of all running replicas, ordered by their id; one that crashes has none.

        Raises:
            EngineDeadError: none is running, or one doesn't answer within `timeout_s` seconds.
        """
        reports = await broadcast(self._handle, "report", ReplicaReport, timeout_s)
        return sorted(reports, key=lambda report: report.replica_id)

    async def activities(self, timeout_s: float) -> list[ReplicaActivity]:
        """What all running replicas are doing, ordered by their id; one that crashes has none.

        Raises:
            EngineDeadError: none is running, or one doesn't answer within `timeout_s` seconds.
        """
        found = await broadcast(self._handle, "activity", ReplicaActivity, timeout_s)
        return sorted(found, key=lambda one: one.replica_id)

    async def rooms(self) -> list[Room]:
        """What each of the running replicas would take in now.

        Raises:
            EngineDeadError: none is running, one crashes, or one doesn't answer within
                `ROOM_TIMEOUT_S`.
        """
        answers = await ask_all(self._handle, "room", ROOM_TIMEOUT_S)
        rooms = [answer for answer in answers if isinstance(answer, Room)]
        if len(rooms) < len(answers):
            raise EngineNotReadyError("a replica that was asked for its room is lost")
        return rooms

    async def check_ready(self, timeout_s: float) -> None:
        """Asks one replica for its health.

        Raises:
            EngineDeadError: none answers within `timeout_s` seconds, or it is unhealthy.
        """
        await self._call("check_health", timeout_s=timeout_s)

    def _open(self, request: EngineRequest) -> AsyncGenerator[TokenEvent, None]:
        return self._stream(
            "start_stream", request, is_last=lambda event: event.finish_reason is not None
        )

    async def _stream(
        self, method: str, argument: Any, is_last: Callable[[Any], bool]
    ) -> AsyncGenerator[Any, None]:
        """The items of a replica's stream; the first says that it has accepted the request."""
        response = getattr(self._stream_handle, method).remote(argument)
        is_accepted = is_over = False
        try:
            async for item in response:
                is_accepted = True
                is_over = is_last(item)
                yield item
        except (RayError, RayServeException) as error:
            is_over = True
            # A replica lost before it accepted the request had computed nothing of it.
            raise translate(error, was_computing=is_accepted) from None
        finally:
            if not is_over:
                response.cancel()  # reaches the replica as CancelledError, which aborts there

    async def _call(self, method: str, *args: Any, timeout_s: float | None = None) -> Any:
        response = getattr(self._handle, method).remote(*args)
        try:
            return await asyncio.wait_for(_result(response), timeout_s)
        except asyncio.TimeoutError:
            response.cancel()
            raise EngineNotReadyError(f"no replica answered within {timeout_s:g} s") from None
        except asyncio.CancelledError:
            response.cancel()
            raise
        except (RayError, RayServeException) as error:
            raise translate(error) from None


async def broadcast(handle: Any, method: str, kind: type[_T], timeout_s: float) -> list[_T]:
    """The answers of all running replicas of a deployment; one that crashes has none.

    Raises:
        EngineDeadError: none is running, or one doesn't answer within `timeout_s` seconds.
    """
    answers = await ask_all(handle, method, timeout_s)
    return [answer for answer in answers if isinstance(answer, kind)]


async def ask_all(handle: Any, method: str, timeout_s: float) -> list[Any]:
    """The answers of all running replicas, or what a replica raised in its answer's place.

    Raises:
        EngineDeadError: none is running, or one doesn't answer within `timeout_s` seconds.
    """
    response = handle.broadcast(method)
    try:
        answers: list[Any] = await response.results_async(
            timeout_s=timeout_s, return_exceptions=True
        )
    except TimeoutError:
        raise EngineNotReadyError(f"a replica didn't answer within {timeout_s:g} s") from None
    except (RayError, RayServeException) as error:
        raise translate(error) from None
    return answers


async def _result(response: Any) -> Any:
    return await response


def translate(error: Exception, *, was_computing: bool = False) -> Exception:
    """The error of ours that an error from a handle stands for.

    Args:
        error: what Ray or Serve raised.
        was_computing: whether a lost replica had accepted a request that it then may have computed.
    """
    if isinstance(error, BackPressureError):
        return CapacityError(
            f"the server is full: {error}; try again later",
            retry_after_s=error.retry_after_s or 1.0,
        )
    if isinstance(error, DeploymentUnavailableError):
        return EngineNotReadyError(f"no engine is deployed: {error}")
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception) and not isinstance(cause, RayError | RayServeException):
        return cause
    message = f"the replica is lost: {type(error).__name__}: {error}".splitlines()[0]
    return EngineDeadError(message, was_computing=was_computing)
