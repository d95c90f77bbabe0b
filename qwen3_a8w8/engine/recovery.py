"""What happens after a step that the runner couldn't carry out.

Nothing is known of what such a step has done, so the runner forgets all sequences and
learns them anew: they are computed again from their known tokens, which by batch
invariance changes no bit of what they give. Then it is found out whose fault it was:

1. A probe of one token runs by itself. If that fails too, the runner is broken and the
   engine dead; whoever reads the streams resumes them elsewhere.
2. The failed step's sequences are tried one after another, each alone, in batches of 1.
   One that fails its trial ends with a `RequestFailedError`; the others go on.

A sequence that was in several failed steps which no trial explains ends too, so that this
comes to an end. Sequences that are suspect from their past (`EngineRequest.num_deaths`)
are tried the same way before they may run beside others.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from qwen3_a8w8.engine.active_sequences import LiveSequences
from qwen3_a8w8.engine.request import TokenEvent
from qwen3_a8w8.engine.scheduling.queues import Queues
from qwen3_a8w8.engine.sequence import Sequence, SequenceState
from qwen3_a8w8.errors import EngineDeadError, RequestFailedError, StepFailedError

TRIAL_TOKENS = 3
"""Tokens that a sequence has to give alone: one by prefill, and as many decode steps as are in
flight at most, because what is known of a dead engine is its last result, not its last plan."""

MAX_UNEXPLAINED_FAILURES = 3

NUM_DEATHS_TO_TRY = 2
"""Deaths in a row (`EngineRequest.num_deaths`) after which a request is tried alone. Not after the
first, which hits all that share a step, and mostly has another cause than one of them."""

logger = logging.getLogger(__name__)


class Recovery:
    """Trials of suspects; while there are any, nothing else is computed.

    Args:
        queues: is told who may run.
        live: is asked to end who is found guilty.
        make_probe: a sequence of one token that gives two more.
    """

    def __init__(
        self, queues: Queues, live: LiveSequences, make_probe: Callable[[], Sequence]
    ) -> None:
        self._queues = queues
        self._live = live
        self._make_probe = make_probe
        self._suspects: deque[Sequence] = deque()
        self._guilty: list[tuple[Sequence, StepFailedError]] = []  # if the probe passes
        self._accused: tuple[int, ...] = ()
        self._num_tokens_to_pass = 0

    @property
    def is_active(self) -> bool:
        """Whether somebody is tried or has to be."""
        return bool(self._queues.trial or self._suspects)

    @property
    def accused_ids(self) -> set[int]:
        """Sequences of the last failed step, until the probe has shown that the runner works."""
        return set(self._accused)

    def suspect(self, seq: Sequence) -> None:
        """Has a sequence tried before it may run beside others."""
        if seq.gang is not None:
            seq.gang.dissolve()  # its rows have to be tried one by one
        if seq not in self._suspects:
            self._suspects.append(seq)

    def begin(self, sequences: list[Sequence], error: StepFailedError) -> None:
        """Takes up a failed step, after the scheduler has put everything back in the queue.

        Args:
            sequences: the live ones that the step was for.
            error: what the runner said.

        Raises:
            EngineDeadError: it was the probe that failed.
        """
        if any(seq.is_probe for seq in sequences):
            raise EngineDeadError(f"the runner fails whatever it is given; last: {error}")
        self._accused = tuple(seq.seq_id for seq in sequences)
        logger.error(
            "a step for the sequences %s failed, now the runner is probed: %s",
            self._accused,
            error,
        )
        for seq in sequences:
            seq.num_failed_steps += 1
            is_alone = seq is self._queues.trial
            if is_alone or seq.num_failed_steps > MAX_UNEXPLAINED_FAILURES:
                self._guilty.append((seq, error))
            else:
                self.suspect(seq)
        probe = self._make_probe()
        self._live.add(probe)
        self._try(probe)

    def advance(self) -> None:
        """Goes on to the next trial if the present one is over; no step may be in flight."""
        trial = self._queues.trial
        if trial is not None and not self._is_over(trial):
            return
        self._queues.trial = None
        while self._suspects:
            seq = self._suspects.popleft()
            if seq.state is not SequenceState.FINISHED:
                self._try(seq)
                return

    def verdicts(self) -> list[TokenEvent]:
        """Ends the sequences that have failed by themselves, once the probe has passed.

        Returns:
            Their last events.
        """
        trial = self._queues.trial
        if trial is None or not trial.is_probe or not self._is_over(trial):
            return []
        self._accused = ()
        events = [
            self._convict(seq, error)
            for seq, error in self._guilty
            if seq.state is not SequenceState.FINISHED
        ]
        if self._guilty:
            for seq in self._live:
                seq.num_failed_steps = 0  # what they were part of is explained
        self._guilty.clear()
        return events

    def _try(self, seq: Sequence) -> None:
        self._queues.vacate_all()  # every trial has the whole cache
        self._queues.trial = seq
        self._num_tokens_to_pass = len(seq.token_ids) + TRIAL_TOKENS

    def _is_over(self, trial: Sequence) -> bool:
        is_passed = len(trial.token_ids) >= self._num_tokens_to_pass
        return is_passed or trial.state is SequenceState.FINISHED

    def _convict(self, seq: Sequence, error: StepFailedError) -> TokenEvent:
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
            self._live.end(seq, "error"),
            error=RequestFailedError(
                "the request could not be computed and was ended; other requests go on. The "
                f"server's log has the cause under failure {failure_id}"
            ),
        )
