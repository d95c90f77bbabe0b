"""The batch router: drives an `EngineCore` for any number of asynchronous readers.

Plan N+1 is sent before the answer to plan N is in (the core's `lookahead`), and nothing polls.
All decisions are the core's. Knows neither Ray nor text; it belongs to one event loop and is
called only from there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable

from qwen3_a8w8.engine.core import EngineCore
from qwen3_a8w8.engine.plan import StepPlan, StepResult
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.engine.stats.engine_stats import EngineStats
from qwen3_a8w8.errors import EngineDeadError

logger = logging.getLogger(__name__)


class TokenStream:
    """Events of one sequence on their way from the batch router to one reader.

    What has piled up while the reader was away is handed over as one event, so a slow
    reader costs one message, not one per token. Nothing is ever held back from a reader
    that waits.
    """

    def __init__(self, seq_id: int) -> None:
        self.seq_id = seq_id
        self._events: list[TokenEvent] = []
        self._reader: asyncio.Future[None] | None = None
        self._is_over = False

    def push(self, event: TokenEvent) -> None:
        """Adds an event; never waits."""
        self._events.append(event)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        return self

    async def __anext__(self) -> TokenEvent:
        """The next event, or several as one.

        Raises:
            RequestFailedError: the sequence can't be computed.
            EngineDeadError: the engine crashed before the sequence ended.
        """
        if self._is_over:
            raise StopAsyncIteration
        if not self._events:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        event = TokenEvent.merged(self._events)
        self._events = []
        self._is_over = event.finish_reason is not None
        if event.error is not None and event.token_ids:
            # The tokens first: a failover builds on them.
            self._is_over = False
            self.push(TokenEvent(self.seq_id, finish_reason="error", error=event.error))
            return TokenEvent(
                self.seq_id,
                event.token_ids,
                event.logprobs,
                num_cached_tokens=event.num_cached_tokens,
                prompt_tokens=event.prompt_tokens,
            )
        if event.error is not None:
            raise event.error
        return event

    async def whole(self) -> TokenEvent:
        """All events of the sequence, up to its end, as one.

        Raises:
            RequestFailedError: the sequence can't be computed.
            EngineDeadError: the engine crashed before the sequence ended.
        """
        return TokenEvent.merged([event async for event in self])


class BatchRouter:
    """One engine's requests, from admission to their ends.

    Every sequence that was submitted ends exactly once: with a finish reason, with a
    RequestFailedError, with an EngineDeadError, or silently because its reader has gone.
    """

    def __init__(self, core: EngineCore, send: Callable[[StepPlan], None]) -> None:
        """Takes over an idle engine.

        Args:
            core: the engine.
            send: sends a plan to the runner and returns at once. Plans are executed in this order,
                and `take` is called with each one's answer, in the same order.
        """
        self._core = core
        self._send = send
        self._streams: dict[int, TokenStream] = {}
        self._is_planning_due = False
        self._last_progress_s = time.monotonic()

    @property
    def core(self) -> EngineCore:
        """The engine, read only."""
        return self._core

    @property
    def error(self) -> EngineDeadError | None:
        """Why the engine is dead, or None."""
        return self._core.error

    def stats(self) -> EngineStats:
        """What the engine holds and has done."""
        return self._core.stats()

    def stalled_s(self) -> float:
        """Seconds since the last step ended while there is work; 0.0 without work."""
        if not self._core.num_active_sequences and not self._core.num_in_flight:
            return 0.0
        return time.monotonic() - self._last_progress_s

    def submit(self, request: EngineRequest) -> TokenStream:
        """Queues a request with `n` = 1.

        Raises:
            InvalidRequestError: it can't be served; see `EngineCore.add`.
            CapacityError: the queue is full.
            EngineDeadError: the engine is gone.
        """
        is_idle = self._is_idle
        (seq_id,) = self._core.add(request)
        return self._open_streams([seq_id], is_idle)[0]

    def submit_batch(self, requests: list[EngineRequest]) -> list[TokenStream]:
        """Queues an explicit batch, which decodes as one; see `EngineCore.add_batch`.

        Raises:
            UnsupportedBatchSizeError: another number of requests than 1 or 16.
            InvalidRequestError: one of them can't be served; none is queued.
            CapacityError: the queue is full.
            EngineDeadError: the engine is gone.
        """
        is_idle = self._is_idle
        return self._open_streams(self._core.add_batch(requests), is_idle)

    def abort(self, stream: TokenStream) -> None:
        """Ends a sequence whose reader has gone; may be repeated."""
        if self._streams.pop(stream.seq_id, None) is not None:
            self._core.abort(stream.seq_id)
            self._plan_soon()  # its blocks may let others in, and the runner has to release it

    def take(self, answer: StepResult | Exception) -> None:
        """Takes in the answer to the oldest plan that was sent, and sends the next.

        Args:
            answer: its result, or what was raised in its place.
        """
        self._last_progress_s = time.monotonic()
        was_alive = self._core.error is None
        self._deliver(self._core.take(answer))
        if was_alive and self._core.error is not None:
            logger.error("the engine is dead: %s", self._core.error)
        self._plan()

    def fail(self, error: Exception) -> None:
        """Declares the engine dead: every live sequence ends with an EngineDeadError."""
        if self._core.error is None:
            logger.error("the engine is dead: %s", error)
        self._deliver(self._core.fail_all(error))

    def close(self) -> None:
        """Ends what is live; may be called again."""
        closed = EngineDeadError("the batch router has been closed", was_computing=False)
        self._deliver(self._core.fail_all(closed))

    @property
    def _is_idle(self) -> bool:
        return not self._core.num_active_sequences and not self._core.num_in_flight

    def _open_streams(self, seq_ids: list[int], was_idle: bool) -> list[TokenStream]:
        if was_idle:
            self._last_progress_s = time.monotonic()  # work begins: the clock starts here
        streams = [TokenStream(seq_id) for seq_id in seq_ids]
        self._streams.update((stream.seq_id, stream) for stream in streams)
        self._plan_soon()
        return streams

    def _plan_soon(self) -> None:
        """Plans once what is ready to run has run, so that requests that come together join."""
        if not self._is_planning_due:
            self._is_planning_due = True
            asyncio.get_running_loop().call_soon(self._plan)

    def _plan(self) -> None:
        self._is_planning_due = False
        try:
            while plan := self._core.plan_step():
                self._send(plan)
        except Exception as error:
            self.fail(error)

    def _deliver(self, events: list[TokenEvent]) -> None:
        for event in events:
            stream = self._streams.get(event.seq_id)
            if stream is None:
                continue
            if event.finish_reason is not None:
                del self._streams[event.seq_id]
            stream.push(event)
