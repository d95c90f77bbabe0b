"""A step being put together, and what its result will mean for each sequence in it.

Keeps the limits of one prefill dispatch and does the book-keeping of work that is
planned but not done. Who gets into the step is the scheduler's decision.
"""

from __future__ import annotations

from dataclasses import dataclass

from qwen3_a8w8.engine.batch import DecodeChoice
from qwen3_a8w8.engine.plan import (
    DecodeBatch,
    DecodeRow,
    PrefillChunk,
    RunnerCapabilities,
    SequenceStart,
    StepPlan,
)
from qwen3_a8w8.engine.sequence import Sequence
from qwen3_a8w8.engine.stats import Decision


@dataclass(frozen=True, slots=True)
class ScheduledWork:
    """One sequence's share of a step.

    Attributes:
        seq: the sequence.
        end: positions [0, end) are computed once the step is confirmed.
        is_sampled: the step samples a token for it.
        num_preemptions: the sequence's count when this was planned; a higher one since then
            means that the blocks this step wrote are no longer its own.
    """

    seq: Sequence
    end: int
    is_sampled: bool
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A plan and each sequence's share of it."""

    plan: StepPlan
    work: tuple[ScheduledWork, ...]


class StepDraft:
    """Collects the parts of one step.

    Attributes:
        preempted: ids of sequences whose blocks were taken away for it.
        blocked: why the first waiting sequence wasn't admitted, or "".
    """

    def __init__(self, step_id: int, capabilities: RunnerCapabilities) -> None:
        self._step_id = step_id
        self._num_tokens_left = capabilities.prefill_chunk_tokens
        self._num_chunks_left = capabilities.max_prefill_seqs
        self._starts: list[SequenceStart] = []
        self._chunks: list[PrefillChunk] = []
        self._choice: DecodeChoice | None = None
        self._decode: DecodeBatch | None = None
        self._work: list[ScheduledWork] = []
        self.preempted: list[int] = []
        self.blocked = ""

    @property
    def has_work(self) -> bool:
        """Whether anything is to be computed."""
        return bool(self._work)

    @property
    def has_prefill_room(self) -> bool:
        """Whether another chunk of at least one token fits the prefill dispatch."""
        return self._num_tokens_left > 0 and self._num_chunks_left > 0

    def start(self, seq: Sequence) -> None:
        """Makes a sequence known to the runner."""
        self._starts.append(seq.start_message())

    def add_chunk(self, seq: Sequence) -> None:
        """Adds as much of the sequence's prefill as there is room for, perhaps nothing."""
        if not self.has_prefill_room:
            return
        start = seq.num_computed_tokens
        num_tokens = min(self._num_tokens_left, seq.prefill_end - start)
        is_sampled = start + num_tokens == seq.prefill_end
        self._chunks.append(
            PrefillChunk(seq.seq_id, start, num_tokens, tuple(seq.block_ids), is_sampled)
        )
        self._num_tokens_left -= num_tokens
        self._num_chunks_left -= 1
        self._add_work(seq, num_tokens, is_sampled=is_sampled)

    def set_decode(self, choice: DecodeChoice) -> None:
        """Makes the chosen rows the step's decode dispatch."""
        rows: list[DecodeRow] = []
        for seq in choice.rows:
            rows.append(DecodeRow(seq.seq_id, seq.num_total_tokens - 1, tuple(seq.block_ids)))
            self._add_work(seq, 1, is_sampled=True)
            seq.last_decode_step = self._step_id
        self._choice = choice
        self._decode = DecodeBatch(choice.batch_size, tuple(rows))

    def finish(self, release: tuple[int, ...]) -> ScheduledStep:
        """The step, with the sequences that the runner is to forget."""
        plan = StepPlan(
            step_id=self._step_id,
            release=release,
            start=tuple(self._starts),
            prefill=tuple(self._chunks),
            decode=self._decode,
        )
        return ScheduledStep(plan, tuple(self._work))

    def decision(self) -> Decision:
        """Why the step is as it is."""
        choice = self._choice
        return Decision(
            step_id=self._step_id,
            num_prefill_tokens=sum(chunk.num_tokens for chunk in self._chunks),
            num_prefill_chunks=len(self._chunks),
            decode_batch_size=choice.batch_size if choice else 0,
            num_decode_rows=len(choice.rows) if choice else 0,
            num_ready=choice.num_ready if choice else 0,
            decode_reason=choice.reason if choice else "nothing ready",
            preempted=tuple(self.preempted),
            blocked=self.blocked,
        )

    def _add_work(self, seq: Sequence, num_tokens: int, *, is_sampled: bool) -> None:
        # Counted as done from here on: the next step may be planned before this one has run.
        seq.num_computed_tokens += num_tokens
        seq.num_in_flight += is_sampled
        self._work.append(
            ScheduledWork(seq, seq.num_computed_tokens, is_sampled, seq.num_preemptions)
        )
