"""From plan to result: what goes to the runner next, and what its results change.

Owns the order of steps and what of them is in flight. Which sequences a step computes is
`scheduler.py`'s decision, what a sample means for its sequence is `results.py`, and what
follows from a step that couldn't be carried out is `recovery.py`. Doesn't know whether the
engine is still alive: `core.py` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from qwen3_a8w8.engine.in_flight import InFlight
from qwen3_a8w8.engine.live import LiveSequences
from qwen3_a8w8.engine.plan import StepPlan, StepResult
from qwen3_a8w8.engine.queue_limit import QueueLimit
from qwen3_a8w8.engine.recovery import Recovery
from qwen3_a8w8.engine.request import TokenEvent
from qwen3_a8w8.engine.results import append_samples, samples_by_sequence
from qwen3_a8w8.engine.scheduler import Scheduler
from qwen3_a8w8.errors import EngineDeadError, StepFailedError
from qwen3_a8w8.kv_cache.block_pool import BlockPool


class StepCycle:
    """The steps of one runner, in order.

    Attributes:
        num_active_rows: live rows of the last planned decode dispatch.
        device_time_s: seconds that the device has computed, by the results.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        pool: BlockPool,
        queue_limit: QueueLimit,
        live: LiveSequences,
        recovery: Recovery,
        *,
        lookahead: int,
        clock: Callable[[], float],
    ) -> None:
        """Begins without steps.

        Args:
            scheduler: composes steps.
            pool: its KV blocks, to look at.
            queue_limit: is told what starts.
            live: sequences that have not ended.
            recovery: what is tried after a step that failed.
            lookahead: plans that may be made before the result of the last one is in.
            clock: seconds.
        """
        self._scheduler = scheduler
        self._pool = pool
        self._queue_limit = queue_limit
        self._live = live
        self._recovery = recovery
        self._lookahead = lookahead
        self._clock = clock
        self._in_flight = InFlight()
        self._was_idle = True
        self._next_step_id = 0
        self.num_active_rows = 0
        self.device_time_s = 0.0

    @property
    def num_in_flight(self) -> int:
        """Plans whose result isn't in."""
        return len(self._in_flight)

    def plan(self) -> StepPlan | None:
        """Makes the next plan, or none; see `EngineCore.plan_step`.

        Raises:
            EngineDeadError: nothing is in flight and yet no live sequence can go on.
        """
        if len(self._in_flight) > self._lookahead:
            return None
        if self._in_flight.has_lost or self._recovery.is_active:
            if len(self._in_flight):
                return None
            self._recovery.advance()
        step = self._scheduler.schedule(self._next_step_id)
        if step is None:
            if len(self._live) and not len(self._in_flight):
                raise EngineDeadError(
                    f"{len(self._live)} sequences are live, but none can be scheduled: "
                    f"{self._pool.num_free} of {self._pool.num_usable_blocks} KV blocks are free, "
                    f"last decision {self._scheduler.last_decision}"
                )
            return None
        self._next_step_id += 1
        for start in step.plan.start:
            self._queue_limit.count_start(len(start.prompt_token_ids) + len(start.output_token_ids))
        self._in_flight.push(replace(step, follows_idle=self._was_idle))
        self._was_idle = False
        self.num_active_rows = len(step.plan.decode.rows) if step.plan.decode else 0
        return step.plan

    def complete(self, result: StepResult) -> list[TokenEvent]:
        """Takes in the result of the oldest plan; see `EngineCore.complete_step`.

        Raises:
            EngineDeadError: the result is not that of the oldest plan, or samples are missing.
        """
        step = self._in_flight.take(result.step_id)
        if step is None:
            return []
        sampled = samples_by_sequence(step, result)
        self.device_time_s += result.device_time_s
        if not step.follows_idle:
            self._scheduler.counters.count_gap(result.device_time_s, result.idle_s)
        for token in result.prompt_tokens:
            if (seq := self._live.get(token.seq_id)) is not None:
                seq.prompt_tokens[token.position] = token
        num_sampled = {seq_id: len(tokens) for seq_id, tokens in sampled.items()}
        self._scheduler.confirm(step, result, num_sampled)
        events: dict[int, TokenEvent] = {}
        now_s = self._clock()
        for seq_id, tokens in sampled.items():
            if (seq := self._live.get(seq_id)) is None:
                continue
            event = append_samples(seq, tokens)
            self._live.requests.count_tokens(seq, len(event.token_ids), now_s)
            if event.finish_reason is not None:
                self._live.end(seq, event.finish_reason)
            if not seq.is_probe:
                events[seq_id] = event
        for end in (*self._live.end_overdue(), *self._recovery.verdicts()):
            # It joins what this step gave the sequence.
            news = events.get(end.seq_id, end)
            events[end.seq_id] = replace(news, finish_reason=end.finish_reason, error=end.error)
        self._was_idle = not len(self._live) and not len(self._in_flight)
        return list(events.values())

    def fail(self, step_id: int, error: StepFailedError) -> None:
        """Takes note that the oldest plan couldn't be carried out; see `EngineCore.fail_step`.

        Raises:
            EngineDeadError: the runner fails whatever it is given.
        """
        plans = self._in_flight.fail(step_id)
        if not plans:
            return
        self._scheduler.counters.num_failed_steps += 1
        self._scheduler.restart_all(plans)
        sequences = [self._live.get(seq_id) for seq_id in plans[0].seq_ids]
        self._recovery.begin([seq for seq in sequences if seq is not None], error)

    def stop(self) -> set[int]:
        """Forgets what is in flight, as its results will never come.

        Returns:
            Ids of the sequences that were being computed, or have been accused of a failure.
        """
        suspects = self._in_flight.seq_ids | self._recovery.accused_ids
        self._in_flight.clear()
        return suspects
