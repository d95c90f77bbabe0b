"""From plan to result: what goes to the runner next, and what its results change.

Owns the order of steps and what of them is in flight. Which sequences a step computes is
`scheduling/scheduler.py`'s decision, and what follows from a step that couldn't be carried out
is `recovery.py`. A result that doesn't fit its plan is a defect of the runner, and reported as
one. Doesn't know whether the engine is still alive: `core.py` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from qwen3_a8w8.engine.active_sequences import ActiveSequences
from qwen3_a8w8.engine.admission.queue_limit import QueueLimit
from qwen3_a8w8.engine.plan import PromptToken, SampledToken, StepPlan, StepResult, TokenLogprobs
from qwen3_a8w8.engine.recovery import Recovery
from qwen3_a8w8.engine.request import FinishReason, TokenEvent
from qwen3_a8w8.engine.scheduling.scheduler import Scheduler
from qwen3_a8w8.engine.scheduling.step_builder import ScheduledStep
from qwen3_a8w8.engine.sequence import Sequence
from qwen3_a8w8.errors import EngineDeadError, InvalidRequestError, StepFailedError
from qwen3_a8w8.kv_cache.block_pool import BlockPool


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
    def plans(self) -> list[StepPlan]:
        """Their plans, the oldest first."""
        return [step.plan for step in self._steps]

    @property
    def has_lost(self) -> bool:
        """Whether a step is in flight whose result won't be used."""
        return self._num_lost > 0

    @property
    def seq_ids(self) -> set[int]:
        """Sequences that are being computed."""
        return {seq_id for step in self._steps for seq_id in step.plan.seq_ids}

    def push(self, step: ScheduledStep) -> None:
        """Adds a step that is being sent."""
        self._steps.append(step)

    def complete(self, step_id: int) -> ScheduledStep | None:
        """Removes the oldest step, whose result is in; None if it was lost.

        Raises:
            EngineDeadError: the oldest step isn't the one named.
        """
        step = self._steps[0] if self._steps else None
        if step is None or step.plan.step_id != step_id:
            expected = "no result" if step is None else f"that of step {step.plan.step_id}"
            raise EngineDeadError(f"got the result of step {step_id}, expected {expected}")
        return self._remove_oldest()

    def fail(self) -> list[StepPlan]:
        """Removes the oldest step, which has failed; the others are lost with it.

        Returns:
            Its plan and theirs; nothing if it was lost itself.

        Raises:
            EngineDeadError: no step is in flight.
        """
        if not self._steps:
            raise EngineDeadError("the runner reports a failed step, but none is in flight")
        step = self._remove_oldest()
        if step is None:
            return []
        self._num_lost = len(self._steps)
        return [step.plan, *(later.plan for later in self._steps)]

    def clear(self) -> None:
        """Drops all of them."""
        self._steps.clear()
        self._num_lost = 0

    def _remove_oldest(self) -> ScheduledStep | None:
        step = self._steps.popleft()
        if self._num_lost == 0:
            return step
        self._num_lost -= 1
        return None


def samples_by_sequence(step: ScheduledStep, result: StepResult) -> dict[int, list[SampledToken]]:
    """The samples of a result, in the order of the step's work.

    Raises:
        EngineDeadError: samples are missing, or there are more than were asked for.
    """
    most = {work.seq.seq_id: 1 + work.num_draft_tokens for work in step.work if work.is_sampled}
    sampled: dict[int, list[SampledToken]] = {}
    for token in result.sampled:
        sampled.setdefault(token.seq_id, []).append(token)
    if sampled.keys() != most.keys():
        raise EngineDeadError(
            f"step {result.step_id} has samples for sequences {sorted(sampled)}, expected "
            f"{sorted(most)}"
        )
    for seq_id, tokens in sampled.items():
        if len(tokens) > most[seq_id]:
            raise EngineDeadError(
                f"step {result.step_id} has {len(tokens)} samples for sequence {seq_id}, expected "
                f"at most {most[seq_id]}"
            )
    return {seq_id: sampled[seq_id] for seq_id in most}


def append_samples(seq: Sequence, tokens: list[SampledToken]) -> TokenEvent:
    """Takes a step's samples into their sequence.

    Returns:
        What they add; its `finish_reason` says that the sequence ends here.

    Raises:
        EngineDeadError: a sample isn't for the position that comes next.
    """
    is_first = seq.num_output_tokens == 0
    error: InvalidRequestError | None = None
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs | None] = []
    finish_reason: FinishReason | None = None
    for token in tokens:
        if token.position != len(seq.token_ids):
            raise EngineDeadError(
                f"sequence {seq.seq_id} got a sample for position {token.position}, expected "
                f"{len(seq.token_ids)}"
            )
        if token.error is not None:
            error, finish_reason = _grammar_error(seq, token.error), "error"
            break
        token_ids.append(token.token_id)
        logprobs.append(token.logprobs)
        finish_reason = seq.append(token.token_id)
        if finish_reason is not None:
            break  # accepted draft tokens beyond the end are dropped
    return TokenEvent(
        seq_id=seq.seq_id,
        token_ids=tuple(token_ids),
        logprobs=tuple(logprobs),
        finish_reason=finish_reason,
        stop_token_id=token_ids[-1] if finish_reason == "stop" else None,
        num_cached_tokens=seq.num_cached_tokens,
        error=error,
        prompt_tokens=_prompt_tokens(seq) if is_first else (),
    )


def _prompt_tokens(seq: Sequence) -> tuple[PromptToken, ...]:
    return tuple(seq.prompt_tokens[position] for position in sorted(seq.prompt_tokens))


def _grammar_error(seq: Sequence, message: str) -> InvalidRequestError:
    """Why the grammar of a structured output allows no next token."""
    structured = seq.sampling.structured
    param = None if structured is None else structured.param
    return InvalidRequestError(
        f"the structured output cannot continue after {seq.num_output_tokens} tokens: {message}; "
        f"make {param} simpler",
        param=param,
    )


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
        active: ActiveSequences,
        recovery: Recovery,
        *,
        lookahead: int,
        clock: Callable[[], float],
    ) -> None:
        """Starts without steps.

        Args:
            scheduler: composes steps.
            pool: its KV blocks, to look at.
            queue_limit: counts what starts.
            active: sequences that have not ended.
            recovery: what is tried after a step that failed.
            lookahead: plans that may be made before the result of the last one is in.
            clock: seconds.
        """
        self._scheduler = scheduler
        self._pool = pool
        self._queue_limit = queue_limit
        self._active = active
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

    @property
    def plans_in_flight(self) -> list[StepPlan]:
        """Those plans, the oldest first."""
        return self._in_flight.plans

    def plan(self) -> StepPlan | None:
        """Makes the next plan, or none; see `EngineCore.plan_step`.

        Raises:
            EngineDeadError: nothing is in flight and yet no active sequence can continue.
        """
        if len(self._in_flight) > self._lookahead:
            return None
        if self._in_flight.has_lost or self._recovery.is_active:
            if len(self._in_flight):
                return None
            self._recovery.advance()
        step = self._scheduler.schedule(self._next_step_id)
        if step is None:
            if len(self._active) and not len(self._in_flight):
                raise EngineDeadError(
                    f"{len(self._active)} sequences are active, but none can be scheduled: "
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
        step = self._in_flight.complete(result.step_id)
        if step is None:
            return []
        sampled = samples_by_sequence(step, result)
        self.device_time_s += result.device_time_s
        self._active.recent.count_step(step.plan, result.device_time_s)
        if not step.follows_idle:
            self._scheduler.counters.count_gap(result.device_time_s, result.idle_s)
        for token in result.prompt_tokens:
            if (seq := self._active.get(token.seq_id)) is not None:
                seq.prompt_tokens[token.position] = token
        num_sampled = {seq_id: len(tokens) for seq_id, tokens in sampled.items()}
        self._scheduler.confirm(step, result, num_sampled)
        events: dict[int, TokenEvent] = {}
        now_s = self._clock()
        for seq_id, tokens in sampled.items():
            if (seq := self._active.get(seq_id)) is None:
                continue
            event = append_samples(seq, tokens)
            self._active.count_tokens(seq, len(event.token_ids), now_s)
            if event.finish_reason is not None:
                self._active.end(seq, event.finish_reason)
            if not seq.is_canary:
                events[seq_id] = event
        for end in (*self._active.end_overdue(), *self._recovery.end_failed()):
            # It joins what this step gave the sequence.
            event = events.get(end.seq_id, end)
            events[end.seq_id] = replace(event, finish_reason=end.finish_reason, error=end.error)
        self._was_idle = not len(self._active) and not len(self._in_flight)
        return list(events.values())

    def fail(self, error: StepFailedError) -> None:
        """Recovers from an oldest plan that couldn't be carried out; see `EngineCore.fail_step`.

        Raises:
            EngineDeadError: the runner fails whatever it is given.
        """
        plans = self._in_flight.fail()
        if not plans:
            return
        self._scheduler.counters.num_failed_steps += 1
        self._scheduler.restart_all(plans)
        sequences = [self._active.get(seq_id) for seq_id in plans[0].seq_ids]
        self._recovery.begin([seq for seq in sequences if seq is not None], error)

    def stop(self) -> set[int]:
        """Drops what is in flight, as its results will never come.

        Returns:
            Ids of the sequences that were being computed, or are blamed for a failure.
        """
        blamed = self._in_flight.seq_ids | self._recovery.blamed_ids
        self._in_flight.clear()
        return blamed
