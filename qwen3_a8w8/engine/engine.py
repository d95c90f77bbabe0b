"""The in-process engine: an `EngineCore` and a `Runner` that work in turns.

The loop is `Engine.step`: schedule, run, update. The runner works in a thread of
its own, so that with `lookahead` 1 the next plan is made, and text is decoded,
while the device computes. Tokens only; `llm/` adds the text.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.collector import Collector, EventHook
from qwen3_a8w8.engine.core import EngineCore
from qwen3_a8w8.engine.plan import Runner, StepPlan, StepResult, execute_step
from qwen3_a8w8.engine.request import EngineRequest, SequenceOutput, TokenEvent
from qwen3_a8w8.engine.stats.engine_stats import EngineStats
from qwen3_a8w8.errors import EngineDeadError


class Engine:
    """Serves requests in this process. Not thread-safe: one thread at a time may call.

    Calls may be interleaved, though: while one `stream` is read, others (or `generate`) may run,
    and events are kept for the call that they belong to.
    """

    def __init__(self, runner: Runner, config: EngineConfig) -> None:
        """Takes over a warm runner; `close` closes it.

        Raises:
            ConfigError: the runner's capabilities can't be scheduled.
        """
        self._runner = runner
        self._core = EngineCore(runner.capabilities, config)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="runner")
        self._pid = os.getpid()
        self._last_sent = -1  # step id
        self._answers: deque[tuple[int, StepResult | Exception]] = deque()  # with their step ids
        self._has_answer = threading.Event()
        self._events: dict[int, list[TokenEvent]] = {}

    def step(self) -> bool:
        """Schedule, run, update: completes one step, after sending as many as lookahead allows.

        If the runner fails for one sequence only, that one gets its last event here, with the
        error; if it fails whatever it is given, every sequence does.

        Returns:
            Whether there was anything to do.
        """
        if os.getpid() != self._pid:
            raise EngineDeadError(
                f"the engine's threads are in process {self._pid}, not in its fork {os.getpid()}; "
                "make an engine in each process",
                was_computing=False,
            )
        try:
            self._send()
            while self._core.plan_step() is not None:
                self._send()
        except Exception as error:
            events = self._core.fail_all(error)
        else:
            if not self._core.num_in_flight:
                return False
            events = self._take_answer()
        for event in events:
            if event.seq_id in self._events:
                self._events[event.seq_id].append(event)
        return True

    def _send(self) -> None:
        """Sends the plans in flight that haven't been, also those that an interrupt kept back."""
        for plan in self._core.plans_in_flight:
            if plan.step_id > self._last_sent:
                self._worker.submit(self._execute, plan)
                self._last_sent = plan.step_id

    def _execute(self, plan: StepPlan) -> None:
        """Runs on the worker's thread."""
        answer: StepResult | Exception
        try:
            answer = execute_step(self._runner, plan)
        except Exception as error:
            answer = error
        self._answers.append((plan.step_id, answer))
        self._has_answer.set()

    def _take_answer(self) -> list[TokenEvent]:
        """Waits for the oldest plan's answer and takes it in.

        A KeyboardInterrupt, mostly one that came while this waited, loses no answer: it stays in
        the queue until the core has taken it.
        """
        while not self._answers:
            self._has_answer.clear()
            if not self._answers:
                self._has_answer.wait()
        step_id, answer = self._answers[0]
        is_new = any(plan.step_id == step_id for plan in self._core.plans_in_flight[:1])
        events = self._core.take(answer) if is_new else []
        self._answers.popleft()
        return events

    def stats(self) -> EngineStats:
        """A snapshot of the engine's state and counters."""
        return self._core.stats()

    def generate(
        self, requests: list[EngineRequest], on_event: EventHook | None = None
    ) -> list[SequenceOutput]:
        """Runs independent requests to their ends, as many at a time as fit.

        Args:
            requests: any number; what the queue has no room for is added as others end.
            on_event: sees every event as it happens and may end its sequence.

        Returns:
            The sequences in the order of the requests, `sampling.n` for each.

        Raises:
            InvalidRequestError: a request can't be served; none has been started.
            CapacityError: a request has more sequences than the queue ever has room for.
            RequestFailedError: the runner can't compute one of them; the others are aborted.
            EngineDeadError: the runner has failed, or the engine is closed.
        """
        for request in requests:
            self._core.check(request)
        return self._run(deque(enumerate(requests)), Collector(on_event))

    def generate_batch(
        self, requests: list[EngineRequest], on_event: EventHook | None = None
    ) -> list[SequenceOutput]:
        """Runs 1 or 16 requests as one true batch; see `EngineCore.add_batch`.

        Returns:
            As `generate`.

        Raises:
            UnsupportedBatchSizeError: another number of requests.
            InvalidRequestError: a request can't be served; none has been started.
            CapacityError: the queue is full.
            RequestFailedError: the runner can't compute one of them; the others are aborted.
            EngineDeadError: the runner has failed, or the engine is closed.
        """
        seq_ids = self._watch(self._core.add_batch(requests))
        collector = Collector(on_event)
        if len(requests) == 1:
            collector.expect(0, requests[0], seq_ids)
        else:
            for i, request in enumerate(requests):
                collector.expect(i, request, [seq_ids[i]])
        return self._run(deque(), collector)

    def stream(self, request: EngineRequest) -> Iterator[TokenEvent]:
        """Yields the events of one request (its `n` sequences interleaved) as they happen.

        The request is checked by this call and queued by the first `next`, so that an iterator
        that is never read holds nothing. Closing it aborts what is still active.

        Raises:
            InvalidRequestError: the request can't be served.
            CapacityError: the queue is full (from `next`).
            RequestFailedError: the runner can't compute it (from `next`).
            EngineDeadError: the runner has failed, or the engine is closed (from `next`).
        """
        self._core.check(request)
        return self._stream(request)

    def close(self) -> None:
        """Ends what is active, waits for the step in flight and closes the runner; idempotent."""
        for event in self._core.fail_all(
            EngineDeadError("the engine has been closed", was_computing=False)
        ):
            if event.seq_id in self._events:
                self._events[event.seq_id].append(event)
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._runner.close()

    def _run(
        self, pending: deque[tuple[int, EngineRequest]], collector: Collector
    ) -> list[SequenceOutput]:
        try:
            while pending or collector.active:
                while pending and self._may_add(pending[0][1], collector):
                    index, request = pending.popleft()
                    collector.expect(index, request, self._watch(self._core.add(request)))
                for event in self._next_events(collector):
                    if collector.take(event):
                        self._core.abort(event.seq_id, "stop")
        finally:
            self._release(collector)
        return collector.outputs()

    def _may_add(self, request: EngineRequest, collector: Collector) -> bool:
        # With nothing of its own to wait for, `add` raises why there is no room.
        return self._core.has_room(request) or not collector.active

    def _stream(self, request: EngineRequest) -> Iterator[TokenEvent]:
        collector = Collector()
        collector.expect(0, request, self._watch(self._core.add(request)))
        try:
            while collector.active:
                for event in self._next_events(collector):
                    collector.take(event)
                    yield event
        finally:
            self._release(collector)

    def _next_events(self, collector: Collector) -> list[TokenEvent]:
        """Events of the call's sequences; makes one step if there are none yet."""
        if not any(self._events[seq_id] for seq_id in collector.active):
            self.step()
        events: list[TokenEvent] = []
        for seq_id in sorted(collector.active):
            events += self._events[seq_id]
            self._events[seq_id] = []
        return events

    def _watch(self, seq_ids: list[int]) -> list[int]:
        self._events.update((seq_id, []) for seq_id in seq_ids)
        return seq_ids

    def _release(self, collector: Collector) -> None:
        """Ends what is active of a call; when nothing at all is left, empties the runner too."""
        for seq_id in collector.seq_ids:
            self._core.abort(seq_id)
            del self._events[seq_id]
        while self._core.num_active_sequences == 0 and self.step():
            pass
