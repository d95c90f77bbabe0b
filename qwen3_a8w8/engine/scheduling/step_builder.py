"""A step being put together: which rows decode, and what its result will mean for each sequence.

`choose_decode` is one pure decision: in come the sequences that could decode now, out come the
rows of one dispatch and the reason. `StepBuilder` keeps the limits of one prefill dispatch and
does the book-keeping of work that is planned but not done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from qwen3_a8w8.engine.plan import (
    DecodeBatch,
    DecodeRow,
    PrefillChunk,
    RunnerCapabilities,
    SequenceStart,
    StepPlan,
)
from qwen3_a8w8.engine.sequence import Sequence, SequenceState
from qwen3_a8w8.engine.stats.engine_stats import Decision


@dataclass(frozen=True, slots=True)
class DecodeChoice:
    """The rows of a decode dispatch.

    Attributes:
        batch_size: rows the dispatch is compiled for.
        rows: the live ones, in the order of arrival.
        num_ready: sequences that could have been decoded.
        reason: why this size, for logs and debugging.
    """

    batch_size: int
    rows: tuple[Sequence, ...]
    num_ready: int
    reason: str


def choose_decode(
    ready: list[Sequence],
    batch_sizes: tuple[int, ...],
    step_s: Mapping[int, float],
) -> DecodeChoice | None:
    """Picks the rows of the next decode dispatch.

    An explicit batch and the independent sequences never share a dispatch; when both are
    ready, the one that has waited longer decodes. Independent sequences of a number that is
    itself a batch size (1, 16) all decode together; any other number takes the size that
    brings all of them one token further in the least time: ceil(n / size) dispatches of
    that size. If that takes several dispatches, the rows that decoded longest ago go first.

    Args:
        ready: sequences that can decode, each with room for its next token.
        batch_sizes: compiled sizes, ascending.
        step_s: measured seconds of a decode step, by size.

    Returns:
        The choice, or None when nothing is ready.
    """
    if not ready:
        return None
    group, explicit_batch = ready, ready[0].explicit_batch
    if len({seq.explicit_batch for seq in ready}) > 1:
        explicit_batch = min(ready, key=_turn).explicit_batch
        group = [seq for seq in ready if seq.explicit_batch is explicit_batch]
    if explicit_batch is not None:
        return _choice(explicit_batch.batch_size, group, len(ready), "explicit batch")

    num_rows = len(group)
    if num_rows in batch_sizes:
        return _choice(num_rows, group, len(ready), f"{num_rows} ready, exactly a batch")
    cost_s = {size: -(-num_rows // size) * step_s[size] for size in batch_sizes}
    best = min(batch_sizes, key=lambda size: (cost_s[size], -size))
    costs = ", ".join(f"B{size} {cost_s[size]:.6g} s" for size in batch_sizes)
    rows = sorted(group, key=_turn)[:best]
    return _choice(best, rows, len(ready), f"{num_rows} ready, one token each: {costs}")


def _turn(seq: Sequence) -> tuple[int, int]:
    return (seq.last_decode_step, seq.seq_id)


def _seq_id(seq: Sequence) -> int:
    return seq.seq_id


def _choice(batch_size: int, rows: list[Sequence], num_ready: int, reason: str) -> DecodeChoice:
    return DecodeChoice(batch_size, tuple(sorted(rows, key=_seq_id)), num_ready, reason)


class ScheduledWork(NamedTuple):
    """One sequence's share of a step.

    Attributes:
        seq: the sequence.
        end: positions [0, end) are computed once the step is confirmed, accepted draft tokens
            left out.
        is_sampled: the step samples a token for it.
        num_draft_tokens: draft tokens that the step checks for it.
        num_preemptions: the sequence's count when this was planned; a higher one since then
            means that the blocks this step wrote are no longer its own.
    """

    seq: Sequence
    end: int
    is_sampled: bool
    num_preemptions: int
    num_draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """A chunk on its way through the layers, and its sequence."""

    seq: Sequence
    chunk: PrefillChunk
    num_preemptions: int

    @property
    def is_wanted(self) -> bool:
        """Whether the sequence still runs and was never preempted since."""
        return (
            self.seq.state is SequenceState.RUNNING
            and self.seq.num_preemptions == self.num_preemptions
        )


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A plan and each sequence's share of it.

    Attributes:
        plan: what the runner gets.
        work: what is done once the result is in; of chunks, when they are through all layers.
        prefill_layer_share: part of the layers that the chunks go through in this step.
        follows_idle: the engine had no live sequence before it.
    """

    plan: StepPlan
    work: tuple[ScheduledWork, ...]
    prefill_layer_share: float = 1.0
    follows_idle: bool = False


class StepBuilder:
    """Collects the parts of one step.

    Attributes:
        preempted: ids of the sequences that were preempted for it.
        blocked: why the first waiting sequence wasn't admitted, or "".
    """

    def __init__(self, step_id: int, capabilities: RunnerCapabilities) -> None:
        self._step_id = step_id
        self._num_layers = capabilities.num_layers
        self._num_tokens_left = capabilities.prefill_chunk_tokens
        self._num_logits_left = capabilities.max_prefill_seqs
        self._layers = (0, capabilities.num_layers)
        self._starts: list[SequenceStart] = []
        self._chunks: list[ScheduledChunk] = []
        self._choice: DecodeChoice | None = None
        self._decode: DecodeBatch | None = None
        self._work: list[ScheduledWork] = []
        self.preempted: list[int] = []
        self.blocked = ""

    @property
    def has_work(self) -> bool:
        """Whether anything is to be computed."""
        return bool(self._work or self._chunks)

    @property
    def chunks(self) -> list[ScheduledChunk]:
        """The chunks so far."""
        return self._chunks

    @property
    def has_prefill_room(self) -> bool:
        """Whether another chunk of at least one token fits the prefill dispatch."""
        return self._num_tokens_left > 0 and self._num_logits_left > 0

    def start(self, seq: Sequence) -> None:
        """Registers a sequence with the runner."""
        self._starts.append(seq.start_message())

    def limit_prefill(self, num_tokens: int) -> None:
        """Lowers the number of tokens that chunks may have together."""
        self._num_tokens_left = min(self._num_tokens_left, num_tokens)

    def add_chunk(self, seq: Sequence) -> None:
        """Adds as much of the sequence's prefill as there is room for, perhaps nothing."""
        if not self.has_prefill_room:
            return
        start = seq.num_computed_tokens
        num_tokens = min(self._num_tokens_left, seq.prefill_end - start)
        has_logprobs = seq.wants_prompt_logprobs
        if has_logprobs:
            # One row is left, so that a long prompt doesn't keep all others waiting.
            num_tokens = min(num_tokens, max(1, self._num_logits_left - 1))
        is_sampled = start + num_tokens == seq.prefill_end
        chunk = PrefillChunk(seq.seq_id, start, num_tokens, seq.block_ids, is_sampled, has_logprobs)
        self._chunks.append(ScheduledChunk(seq, chunk, seq.num_preemptions))
        self._num_tokens_left -= num_tokens
        self._num_logits_left -= chunk.num_logits

    def continue_chunks(self, chunks: list[ScheduledChunk]) -> None:
        """Continues chunks that have gone through some layers; no others fit beside them."""
        self._chunks = list(chunks)
        self._num_logits_left = 0

    def set_prefill_layers(self, begin: int, end: int) -> None:
        """Sets the layers that the chunks go through; with the last one they count as computed."""
        self._layers = (begin, end)
        if end == self._num_layers:
            for entry in self._chunks:
                self._add_work(entry.seq, entry.chunk.num_tokens, entry.chunk.is_sampled)

    def set_decode(self, choice: DecodeChoice, drafts: tuple[int, ...] = ()) -> None:
        """Makes the chosen rows the step's decode dispatch.

        Args:
            choice: the rows.
            drafts: draft tokens for the row of a batch of 1; its block table covers them.
        """
        rows: list[DecodeRow] = []
        for seq in choice.rows:
            position = seq.num_total_tokens - 1
            rows.append(DecodeRow(seq.seq_id, position, seq.block_ids, drafts))
            self._add_work(seq, 1, True, len(drafts))
            seq.last_decode_step = self._step_id
        self._choice = choice
        self._decode = DecodeBatch(choice.batch_size, tuple(rows))

    def finish(self, release: tuple[int, ...]) -> ScheduledStep:
        """The step, with the sequences that the runner has to release."""
        plan = StepPlan(
            step_id=self._step_id,
            release=release,
            start=tuple(self._starts),
            prefill=tuple(entry.chunk for entry in self._chunks),
            prefill_layers=None if self._layers == (0, self._num_layers) else self._layers,
            decode=self._decode,
        )
        begin, end = self._layers
        return ScheduledStep(plan, tuple(self._work), (end - begin) / self._num_layers)

    def decision(self) -> Decision:
        """Why the step is as it is."""
        choice = self._choice
        is_computed = self._layers[1] == self._num_layers
        return Decision(
            step_id=self._step_id,
            num_prefill_tokens=sum(e.chunk.num_tokens for e in self._chunks) if is_computed else 0,
            num_prefill_chunks=len(self._chunks),
            prefill_layers=self._layers,
            decode_batch_size=choice.batch_size if choice else 0,
            num_decode_rows=len(choice.rows) if choice else 0,
            num_draft_tokens=sum(work.num_draft_tokens for work in self._work),
            num_ready=choice.num_ready if choice else 0,
            decode_reason=choice.reason if choice else "nothing ready",
            preempted=tuple(self.preempted),
            blocked=self.blocked,
        )

    def _add_work(
        self, seq: Sequence, num_tokens: int, is_sampled: bool, num_draft_tokens: int = 0
    ) -> None:
        # Counted as done from here on: the next step may be planned before this one has run.
        seq.num_computed_tokens += num_tokens
        seq.num_in_flight += is_sampled
        self._work.append(
            ScheduledWork(
                seq, seq.num_computed_tokens, is_sampled, seq.num_preemptions, num_draft_tokens
            )
        )
