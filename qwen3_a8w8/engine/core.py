"""The engine's interface: requests in, plans out, results in, token events out.

Synchronous, single-threaded and deterministic: it waits for nothing, so the
in-process engine (`engine.py`) and the asynchronous batch router of the deployment
drive the same code. Per step: `plan_step`, the driver has the plan executed and hands the
answer to `take`. With `lookahead` 1 the next plan may be asked for before the
result of the last one is in; the tokens are the same either way. Drivers keep no account of what
is in flight: the step cycle does.

Who may enter is decided in `admission/`, who runs in `scheduling/`; `step_cycle.py` goes from
plan to result. This module knows whether the engine is alive.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.active_sequences import ActiveSequences
from qwen3_a8w8.engine.admission.queue_limit import QueueLimit, Room
from qwen3_a8w8.engine.admission.sequence_factory import SequenceFactory, check_request
from qwen3_a8w8.engine.plan import RunnerCapabilities, StepPlan, StepResult
from qwen3_a8w8.engine.recovery import NUM_CRASHES_TO_ISOLATE, Recovery
from qwen3_a8w8.engine.request import EngineRequest, FinishReason, TokenEvent
from qwen3_a8w8.engine.scheduling.scheduler import Scheduler
from qwen3_a8w8.engine.sequence import Sequence
from qwen3_a8w8.engine.stats.activity import NUM_WAITING, EngineActivity
from qwen3_a8w8.engine.stats.engine_stats import EngineStats
from qwen3_a8w8.engine.step_cycle import StepCycle
from qwen3_a8w8.errors import ConfigError, EngineDeadError, StepFailedError
from qwen3_a8w8.kv_cache.block_pool import BlockPool

logger = logging.getLogger(__name__)


def _draw_seed() -> int:
    return secrets.randbits(63)


class EngineCore:
    """Admission, scheduling and the ends of sequences, over one runner's capabilities.

    Not thread-safe: its driver calls it from one thread, or under one lock.
    """

    def __init__(
        self,
        capabilities: RunnerCapabilities,
        config: EngineConfig,
        *,
        draw_seed: Callable[[], int] = _draw_seed,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes an idle core.

        Args:
            capabilities: of the runner that will execute the plans.
            config: the queue's and the scheduler's settings are read; sizes come from
                `capabilities`.
            draw_seed: gives a seed to requests that name none.
            clock: seconds, for deadlines and for the rate behind `retry_after_s`.

        Raises:
            ConfigError: a decode batch size has no measured step time, or the pool no block.
        """
        for size in capabilities.decode_batch_sizes:
            if not capabilities.decode_step_s.get(size, 0.0) > 0.0:
                raise ConfigError(
                    f"decode_step_s is {capabilities.decode_step_s!r}, expected a positive time "
                    f"for batch size {size}; the runner measures it at warm-up"
                )
        self._capabilities = capabilities
        self._sequence_factory = SequenceFactory(capabilities, config, draw_seed)
        self._pool = BlockPool(
            capabilities.num_kv_blocks,
            capabilities.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
        )
        self._scheduler = Scheduler(capabilities, self._pool, config, clock)
        self._queue_limit = QueueLimit(config, capabilities, self._scheduler.queues, clock)
        self._active = ActiveSequences(self._scheduler, self._queue_limit, clock)
        self._recovery = Recovery(
            self._scheduler.queues, self._active, self._sequence_factory.canary
        )
        self._steps = StepCycle(
            self._scheduler,
            self._pool,
            self._queue_limit,
            self._active,
            self._recovery,
            lookahead=config.lookahead,
            clock=clock,
        )
        self._error: EngineDeadError | None = None

    @property
    def capabilities(self) -> RunnerCapabilities:
        """What the runner can do."""
        return self._capabilities

    @property
    def pool(self) -> BlockPool:
        """The KV blocks, read only."""
        return self._pool

    @property
    def num_active_sequences(self) -> int:
        """Sequences that have not ended."""
        return len(self._active)

    @property
    def num_in_flight(self) -> int:
        """Plans whose result isn't in."""
        return self._steps.num_in_flight

    @property
    def plans_in_flight(self) -> list[StepPlan]:
        """Those plans, the oldest first."""
        return self._steps.plans_in_flight

    @property
    def error(self) -> EngineDeadError | None:
        """Why the engine is dead, or None."""
        return self._error

    def sequence(self, seq_id: int) -> Sequence:
        """An active sequence, read only (its seed, clamped max_tokens, cached tokens ...).

        Raises:
            KeyError: it has ended or never was.
        """
        return self._active[seq_id]

    def has_room(self, request: EngineRequest) -> bool:
        """Whether `add` would take the request now without a CapacityError."""
        num_tokens = len(request.prompt_token_ids) + len(request.output_token_ids)
        num_new = request.sampling.n
        return self._queue_limit.has_room(num_new, num_new * num_tokens)

    def room(self) -> Room:
        """What `add` would take now, whatever the request; see `has_room` for a given one.

        Raises:
            EngineDeadError: the runner is gone.
        """
        self._check_alive()
        return self._queue_limit.state()

    def check(self, request: EngineRequest) -> None:
        """Raises what `add` would raise because of the request itself; adds nothing.

        Raises:
            InvalidRequestError: see `add`.
            ContextLengthError: see `add`.
        """
        check_request(request, self._capabilities)

    def add(self, request: EngineRequest) -> list[int]:
        """Queues a request.

        Returns:
            Ids of its `sampling.n` sequences; each will end with exactly one event.

        Raises:
            InvalidRequestError: the prompt is empty, a token id or an option is out of range, or
                a resumed output leaves nothing to generate; `param` names the field.
            ContextLengthError: the prompt and one token more can never fit.
            CapacityError: the queue is full; `retry_after_s` comes from the measured rate.
            EngineDeadError: the runner is gone.
        """
        self._check_alive()
        return self._queue(self._sequence_factory.sequences_of(request), [request])

    def add_batch(self, requests: list[EngineRequest]) -> list[int]:
        """Queues an explicit batch that decodes as one true batch of exactly these prompts.

        No row decodes before all are prefilled, no other sequence shares a dispatch, and
        a row that has ended stays idle. Where the KV cache is too small for all outputs,
        `max_tokens` is clamped so that they fit to the end. It has the lowest priority value
        of its requests.

        Args:
            requests: 1 or 16 of them, or what else the runner decodes.

        Returns:
            Ids of the sequences, in the order of the requests (one request: see `add`).

        Raises:
            UnsupportedBatchSizeError: the runner doesn't decode a batch of this size.
            InvalidRequestError: see `add`; also for n > 1 in a batch of several.
            ContextLengthError: a prompt can never fit, or all of them together.
            CapacityError: the queue is full.
            EngineDeadError: the runner is gone.
        """
        self._check_alive()
        return self._queue(self._sequence_factory.sequences_of_batch(requests), requests)

    def abort(self, seq_id: int, finish_reason: FinishReason = "abort") -> TokenEvent | None:
        """Ends a sequence at whatever stage it is; a step in flight is simply ignored.

        Args:
            seq_id: the sequence.
            finish_reason: "stop" if the text it has produced contains a stop string.

        Returns:
            Its last event, or None if it had ended before (so it may be repeated).
        """
        seq = self._active.get(seq_id)
        return None if seq is None else self._active.end(seq, finish_reason)

    def plan_step(self) -> StepPlan | None:
        """Makes the next plan.

        Returns:
            A plan to execute after every earlier one, or None when there is nothing to do now:
            idle, `lookahead` + 1 plans in flight, or all that remains depends on a result.

        Raises:
            EngineDeadError: nothing is in flight and yet no sequence can continue, which is a
                defect of the scheduler; better raised than hung. The caller calls `fail_all`.
        """
        plan = None if self._error is not None else self._steps.plan()
        if plan is not None:
            logger.debug("%s", self._scheduler.last_decision)
        return plan

    def take(self, answer: StepResult | Exception) -> list[TokenEvent]:
        """Takes in what the runner has answered to the oldest plan in flight.

        A step that failed is recovered from (`fail_step`); any other exception, or a result that
        doesn't fit its plan, means that the runner is lost, and every sequence ends (`fail_all`).

        Args:
            answer: the plan's result, or what was raised in its place.

        Returns:
            At most one event per sequence. Empty once the engine is dead.
        """
        try:
            if isinstance(answer, StepResult):
                return self.complete_step(answer)
            if isinstance(answer, StepFailedError):
                self.fail_step(answer)
                return []
            return [] if self._error is not None else self.fail_all(answer)
        except Exception as error:
            return self.fail_all(error)

    def complete_step(self, result: StepResult) -> list[TokenEvent]:
        """Takes in the result of the oldest plan in flight.

        Samples of sequences that have ended since the plan was made are dropped; sequences
        whose time is up end here.

        Returns:
            At most one event per sequence. Empty once the engine is dead.

        Raises:
            EngineDeadError: the result is not that of the oldest plan, or samples are missing;
                the caller calls `fail_all`.
        """
        return [] if self._error is not None else self._steps.complete(result)

    def fail_step(self, error: StepFailedError) -> None:
        """Recovers from an oldest plan in flight that a runner which is alive couldn't carry out.

        Every sequence is recomputed from its known tokens, after those of the step have been
        retried one by one; see `recovery.py`.

        Args:
            error: what the runner said.

        Raises:
            EngineDeadError: the runner fails whatever it is given; the caller calls
                `fail_all`.
        """
        if self._error is None:
            self._steps.fail(error)

    def fail_all(self, error: BaseException) -> list[TokenEvent]:
        """Declares the engine dead: every active sequence ends here, and nothing more is accepted.

        Args:
            error: what happened; an EngineDeadError is passed on as it is.

        Returns:
            One last event per active sequence, with finish_reason "error" and the error, which
            says whether the sequence was being computed (`was_computing`).
        """
        if self._error is None:
            if isinstance(error, EngineDeadError):
                self._error = error
            else:
                self._error = EngineDeadError(f"the runner failed: {type(error).__name__}: {error}")
        return self._active.end_all(self._error, self._steps.stop())

    def stats(self) -> EngineStats:
        """A snapshot of the engine's state and counters."""
        counters = self._scheduler.counters
        num_rows = sum(size * count for size, count in counters.decode_batches.items())
        return EngineStats(
            num_waiting=len(self._scheduler.queues.waiting),
            num_waiting_tokens=self._scheduler.queues.num_waiting_tokens,
            num_running=len(self._scheduler.queues.running),
            num_blocks_in_use=self._pool.num_in_use,
            num_blocks_free=self._pool.num_free,
            block_size=self.capabilities.block_size,
            num_active_rows=self._steps.num_active_rows,
            num_finished=dict(self._active.num_finished),
            decode_fill_ratio=counters.num_decode_rows / num_rows if num_rows else 0.0,
            device_time_s=self._steps.device_time_s,
            prefill_token_s=self._scheduler.prefill.budget.token_s,
            counters=counters.copy(),
            requests=self._active.requests.copy(),
            last_decision=self._scheduler.last_decision,
        )

    def activity(self) -> EngineActivity:
        """A snapshot of what the engine is doing, sequence by sequence."""
        queues, recent = self._scheduler.queues, self._active.recent
        decision = self._scheduler.last_decision
        return EngineActivity(
            running=recent.describe(sorted(queues.running, key=lambda seq: seq.seq_id)),
            waiting=recent.describe(queues.waiting[:NUM_WAITING]),
            num_waiting=len(queues.waiting),
            num_waiting_tokens=queues.num_waiting_tokens,
            num_blocks_in_use=self._pool.num_in_use,
            num_blocks=self._pool.num_usable_blocks,
            block_size=self.capabilities.block_size,
            num_finished=dict(self._active.num_finished),
            steps=tuple(recent.steps),
            seconds=recent.seconds(),
            now_s=recent.now_s,
            decode_reason="" if decision is None else decision.decode_reason,
            blocked="" if decision is None else decision.blocked,
        )

    def _queue(self, sequences: list[Sequence], requests: list[EngineRequest]) -> list[int]:
        self._queue_limit.check(sequences)
        num_each = len(sequences) // len(requests)
        for i, seq in enumerate(sequences):
            request = requests[i // num_each]
            self._active.add(seq, request.timeout_s)
            if request.num_engine_crashes >= NUM_CRASHES_TO_ISOLATE:
                self._recovery.quarantine(seq)
        return [seq.seq_id for seq in sequences]

    def _check_alive(self) -> None:
        if self._error is not None:
            raise EngineDeadError(f"the engine is dead: {self._error}")
