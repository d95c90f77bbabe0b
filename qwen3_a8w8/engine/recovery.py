"""What happens after a step that the runner couldn't carry out.

Nothing is known of what such a step has done, so the runner releases all sequences and they are
registered again: they are recomputed from their known tokens, which by batch invariance changes
no bit of what they give. Then the cause is looked for:

1. A canary step, of a sequence of one token, runs by itself. If that fails too, the runner is
   broken and the engine dead; its streams fail over.
2. The sequences of the failed step are quarantined: each is retried in isolation, in batches of
   1, before it may run beside others again. One that fails in isolation ends with a
   `RequestFailedError`; the others go on.

A sequence that was in several failed steps which no isolated retry explains ends too, so that this
comes to an end. Sequences whose request has crashed engines before
(`EngineRequest.num_engine_crashes`) are quarantined in the same way from the start.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from qwen3_a8w8.engine.active_sequences import ActiveSequences
from qwen3_a8w8.engine.request import TokenEvent
from qwen3_a8w8.engine.scheduling.queues import Queues
from qwen3_a8w8.engine.sequence import Sequence, SequenceState
from qwen3_a8w8.errors import EngineDeadError, RequestFailedError, StepFailedError

ISOLATION_TOKENS = 3
"""Tokens that a sequence has to give in isolation: one by prefill, and as many decode steps as are
in flight at most, because what is known of a crashed engine is its last result, not its last
plan."""

MAX_UNEXPLAINED_FAILURES = 3

NUM_CRASHES_TO_ISOLATE = 2
"""Crashes in a row (`EngineRequest.num_engine_crashes`) after which a request is retried in
isolation. Not after the first, which affects all that share a step, and mostly has another cause
than one of them."""

logger = logging.getLogger(__name__)


class Recovery:
    """Isolated retries of quarantined sequences; while there are any, nothing else is computed.

    Args:
        queues: its `isolated` says which sequence may run.
        active: ends the sequences that fail in isolation.
        make_canary: a sequence of one token that gives two more.
    """

    def __init__(
        self, queues: Queues, active: ActiveSequences, make_canary: Callable[[], Sequence]
    ) -> None:
        self._queues = queues
        self._active = active
        self._make_canary = make_canary
        self._quarantined: deque[Sequence] = deque()
        self._failed: list[tuple[Sequence, StepFailedError]] = []  # to end if the canary passes
        self._blamed: tuple[int, ...] = ()
        self._num_tokens_to_pass = 0

    @property
    def is_active(self) -> bool:
        """Whether a sequence is isolated or has to be."""
        return bool(self._queues.isolated or self._quarantined)

    @property
    def blamed_ids(self) -> set[int]:
        """Sequences of the last failed step, until the canary has shown that the runner works."""
        return set(self._blamed)

    def quarantine(self, seq: Sequence) -> None:
        """Has a sequence retried in isolation before it may run beside others."""
        if seq.explicit_batch is not None:
            seq.explicit_batch.dissolve()  # its rows have to be retried one by one
        if seq not in self._quarantined:
            self._quarantined.append(seq)

    def begin(self, sequences: list[Sequence], error: StepFailedError) -> None:
        """Takes up a failed step, after the scheduler has put everything back in the queue.

        Args:
            sequences: the active ones that the step was for.
            error: what the runner said.

        Raises:
            EngineDeadError: it was the canary step that failed.
        """
        if any(seq.is_canary for seq in sequences):
            raise EngineDeadError(f"the runner fails whatever it is given; last: {error}")
        self._blamed = tuple(seq.seq_id for seq in sequences)
        logger.error(
            "a step for the sequences %s failed, now a canary step tests the runner: %s",
            self._blamed,
            error,
        )
        for seq in sequences:
            seq.num_failed_steps += 1
            is_isolated = seq is self._queues.isolated
            if is_isolated or seq.num_failed_steps > MAX_UNEXPLAINED_FAILURES:
                self._failed.append((seq, error))
            else:
                self.quarantine(seq)
        canary = self._make_canary()
        self._active.add(canary)
        self._isolate(canary)

    def advance(self) -> None:
        """Isolates the next sequence if the present one is done; no step may be in flight."""
        isolated = self._queues.isolated
        if isolated is not None and not self._is_done(isolated):
            return
        self._queues.isolated = None
        while self._quarantined:
            seq = self._quarantined.popleft()
            if seq.state is not SequenceState.FINISHED:
                self._isolate(seq)
                return

    def end_failed(self) -> list[TokenEvent]:
        """Ends the sequences that have failed in isolation, once the canary has passed.

        Returns:
            Their last events.
        """
        isolated = self._queues.isolated
        if isolated is None or not isolated.is_canary or not self._is_done(isolated):
            return []
        self._blamed = ()
        events = [
            self._end(seq, error)
            for seq, error in self._failed
            if seq.state is not SequenceState.FINISHED
        ]
        if self._failed:
            for seq in self._active:
                seq.num_failed_steps = 0  # what they were part of is explained
        self._failed.clear()
        return events

    def _isolate(self, seq: Sequence) -> None:
        self._queues.preempt_all()  # an isolated sequence has the whole cache
        self._queues.isolated = seq
        self._num_tokens_to_pass = len(seq.token_ids) + ISOLATION_TOKENS

    def _is_done(self, isolated: Sequence) -> bool:
        is_passed = len(isolated.token_ids) >= self._num_tokens_to_pass
        return is_passed or isolated.state is SequenceState.FINISHED

    def _end(self, seq: Sequence, error: StepFailedError) -> TokenEvent:
        failure_id = secrets.token_hex(8)
        logger.error(
            "failure %s: sequence %d (%d prompt tokens, %d generated) has ended because the step "
            "that computes it fails: %s",
            failure_id,
            seq.seq_id,
            seq.num_prompt_tokens,
            seq.num_output_tokens,
            error,
        )
        return replace(
            self._active.end(seq, "error"),
            error=RequestFailedError(
                "the request could not be computed and was ended; other requests go on. The "
                f"server's log has the cause under failure {failure_id}"
            ),
        )
