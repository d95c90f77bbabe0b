"""The async shell of the batch router: drives an `EngineCore` against an executor.

Plan N+1 is sent before the result of plan N is in (the core's `lookahead`), new
requests wake the loop, and nothing polls. All decisions are the core's. Knows
neither Ray nor text; it belongs to one event loop and is called only from there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from qwen3_a8w8.engine.core import EngineCore
from qwen3_a8w8.engine.plan import StepPlan, StepResult
from qwen3_a8w8.engine.request import EngineRequest, SequenceOutput, TokenEvent
from qwen3_a8w8.engine.stats.engine_stats import EngineStats
from qwen3_a8w8.errors import EngineDeadError, StepFailedError

logger = logging.getLogger(__name__)

Execute = Callable[[StepPlan], Awaitable[StepResult]]
"""Sends a plan and gives a future of its result; plans run in the order of the calls."""


class TokenStream:
    """Events of one sequence on their way from the router to one reader.

    What has piled up while the reader was away is handed over as one event, so a slow
    reader costs one message, not one per token. Nothing is ever held back from a reader
    that waits.
    """

    def __init__(self, seq_id: int) -> None:
        self.seq_id = seq_id
        self._events: list[TokenEvent] = []
        self._reader: asyncio.Future[None] | None = None  # where it waits
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
            EngineDeadError: the engine died before the sequence ended.
        """
        if self._is_over:
            raise StopAsyncIteration
        if not self._events:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        event = merge_events(self._events)
        self._events = []
        self._is_over = event.finish_reason is not None
        if event.error is not None and event.token_ids:
            # The tokens first: they count, whoever resumes the sequence builds on them.
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


def merge_events(events: list[TokenEvent]) -> TokenEvent:
    """One event that says what `events` (of one sequence, in order, at least one) say."""
    last = events[-1]
    if len(events) == 1:
        return last
    return TokenEvent(
        seq_id=last.seq_id,
        token_ids=tuple(token_id for event in events for token_id in event.token_ids),
        logprobs=tuple(entry for event in events for entry in event.logprobs),
        finish_reason=last.finish_reason,
        stop_token_id=last.stop_token_id,
        num_cached_tokens=max(event.num_cached_tokens for event in events),
        error=last.error,
        prompt_tokens=next((event.prompt_tokens for event in events if event.prompt_tokens), ()),
    )


class BatchRouter:
    """One engine's requests, from admission to their ends.

    Every sequence that was submitted ends exactly once: with a finish reason, with a
    RequestFailedError, with an EngineDeadError, or silently because its reader has gone.
    """

    def __init__(self, core: EngineCore, execute: Execute) -> None:
        self._core = core
        self._execute = execute
        self._streams: dict[int, TokenStream] = {}
        self._in_flight: deque[tuple[int, asyncio.Future[StepResult]]] = deque()
        self._news = asyncio.Event()
        self._last_progress_s = time.monotonic()
        self._task = asyncio.create_task(self._run(), name="router")

    @property
    def core(self) -> EngineCore:
        """The engine's brain, to look at."""
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
        if not self._core.num_active_sequences and not self._in_flight:
            return 0.0
        return time.monotonic() - self._last_progress_s

    def submit(self, request: EngineRequest) -> TokenStream:
        """Queues a request with `n` = 1.

        Raises:
            InvalidRequestError: it can't be served; see `EngineCore.add`.
            CapacityError: the queue is full.
            EngineDeadError: the engine is gone.
        """
        (seq_id,) = self._core.add(request)
        return self._watch([seq_id])[0]

    def submit_batch(self, requests: list[EngineRequest]) -> list[TokenStream]:
        """Queues an explicit batch, which decodes as one; see `EngineCore.add_batch`.

        Raises:
            UnsupportedBatchSizeError: another number of requests than 1 or 16.
            InvalidRequestError: one of them can't be served; none is queued.
            CapacityError: the queue is full.
            EngineDeadError: the engine is gone.
        """
        return self._watch(self._core.add_batch(requests))

    def abort(self, stream: TokenStream) -> None:
        """Ends a sequence whose reader has gone; may be repeated."""
        if self._streams.pop(stream.seq_id, None) is not None:
            self._core.abort(stream.seq_id)
            self._news.set()  # its blocks may let others in; the runner is to forget it

    def fail(self, error: Exception) -> None:
        """Declares the engine dead: every live sequence ends with an EngineDeadError."""
        if self._core.error is None:
            logger.error("the engine is dead: %s", error)
        self._hand_out(self._core.fail_all(error))
        self._news.set()

    async def close(self) -> None:
        """Ends what is live and stops the loop; may be called again."""
        self._hand_out(
            self._core.fail_all(EngineDeadError("the router has been closed", was_computing=False))
        )
        self._news.set()
        await asyncio.gather(self._task, return_exceptions=True)

    def _watch(self, seq_ids: list[int]) -> list[TokenStream]:
        if self._core.num_active_sequences == len(seq_ids) and not self._in_flight:
            self._last_progress_s = time.monotonic()  # work begins: the clock starts here
        streams = [TokenStream(seq_id) for seq_id in seq_ids]
        self._streams.update((stream.seq_id, stream) for stream in streams)
        self._news.set()
        return streams

    async def _run(self) -> None:
        try:
            while self._core.error is None:
                self._news.clear()
                while plan := self._core.plan_step():
                    result = asyncio.ensure_future(self._execute(plan))
                    result.add_done_callback(self._wake)
                    self._in_flight.append((plan.step_id, result))
                await self._news.wait()
                while self._in_flight and self._in_flight[0][1].done():
                    self._complete(*self._in_flight.popleft())
        except Exception as error:
            self.fail(error)
        finally:
            for _, future in self._in_flight:
                future.cancel()
            self._in_flight.clear()

    def _complete(self, step_id: int, future: asyncio.Future[StepResult]) -> None:
        self._last_progress_s = time.monotonic()
        try:
            result = future.result()
        except StepFailedError as error:
            self._core.fail_step(step_id, error)
        else:
            self._hand_out(self._core.complete_step(result))

    def _wake(self, _: asyncio.Future[StepResult]) -> None:
        self._news.set()

    def _hand_out(self, events: list[TokenEvent]) -> None:
        for event in events:
            stream = self._streams.get(event.seq_id)
            if stream is None:
                continue
            if event.finish_reason is not None:
                del self._streams[event.seq_id]
            stream.push(event)


async def collect(
    stream: TokenStream, request: EngineRequest, request_index: int
) -> SequenceOutput:
    """Reads a stream to its end.

    Raises:
        RequestFailedError: the sequence can't be computed.
        EngineDeadError: the engine died before.
    """
    event = merge_events([event async for event in stream])
    return SequenceOutput(
        request_index=request_index,
        index=0,
        prompt_token_ids=request.prompt_token_ids,
        token_ids=request.output_token_ids + event.token_ids,
        logprobs=event.logprobs,
        finish_reason=event.finish_reason or "error",
        stop_token_id=event.stop_token_id,
        num_cached_tokens=event.num_cached_tokens,
        prompt_tokens=event.prompt_tokens,
    )
