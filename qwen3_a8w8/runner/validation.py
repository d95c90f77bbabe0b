"""Rejects invalid plans before anything of them is executed.

A wrong slot would silently overwrite another sequence's cache, so everything
that addresses device memory is checked here, on the host, by value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from qwen3_a8w8.config import SCRATCH_BLOCK
from qwen3_a8w8.engine.plan import DecodeRow, RunnerCapabilities, SequenceStart, StepPlan
from qwen3_a8w8.errors import InvalidRequestError, UnsupportedBatchSizeError
from qwen3_a8w8.runner.layered_prefill import LayeredPrefill
from qwen3_a8w8.runner.sequences import RunnerSequence


def validate_plan(
    plan: StepPlan,
    sequences: Mapping[int, RunnerSequence],
    capabilities: RunnerCapabilities,
    layered: LayeredPrefill | None = None,
) -> None:
    """Checks a whole plan against the live sequences.

    Args:
        plan: the plan.
        sequences: live sequences by id, before the plan.
        capabilities: the runner's limits.
        layered: the prefill dispatch between two groups of layers, if there are groups.

    Raises:
        UnsupportedBatchSizeError: the decode batch has a size that isn't compiled.
        InvalidRequestError: anything else is invalid; `param` names the plan's field.
    """
    check = _PlanCheck(plan, sequences, capabilities)
    check.starts()
    check.prefill_layers(layered)
    check.prefill()
    check.decode()


class _PlanCheck:
    def __init__(
        self,
        plan: StepPlan,
        sequences: Mapping[int, RunnerSequence],
        capabilities: RunnerCapabilities,
    ) -> None:
        self.plan = plan
        self.sequences = sequences
        self.capabilities = capabilities
        # Length in tokens that a sequence will have when its chunk or row is executed, if that
        # differs from now; None: it will be unknown.
        self.lengths: dict[int, int | None] = dict.fromkeys(plan.release)
        self.written: dict[int, int] = {}  # block -> the sequence that writes into it

    def fail(self, field: str, message: str) -> NoReturn:
        raise InvalidRequestError(f"step plan {self.plan.step_id}, {field}: {message}", param=field)

    def starts(self) -> None:
        for start in self.plan.start:
            if self._length(start.seq_id) is not None:
                self.fail("start", f"sequence {start.seq_id} is live already; release it first")
            self._check_ids(start)
            self.lengths[start.seq_id] = len(start.prompt_token_ids) + len(start.output_token_ids)

    def _check_ids(self, start: SequenceStart) -> None:
        vocab_size = self.capabilities.vocab_size
        if not start.prompt_token_ids:
            self.fail("start", f"sequence {start.seq_id} has an empty prompt")
        for token_id in (*start.prompt_token_ids, *start.output_token_ids):
            if not 0 <= token_id < vocab_size:
                self.fail(
                    "start",
                    f"sequence {start.seq_id} has the token id {token_id}, the vocabulary has "
                    f"ids 0 to {vocab_size - 1}",
                )

    def prefill_layers(self, layered: LayeredPrefill | None) -> None:
        layers = self.plan.prefill_layers
        if layers is None:
            return
        groups = () if layered is None else layered.groups
        if layered is None or layers not in groups:
            self.fail(
                "prefill_layers",
                f"{layers} isn't a group of layers of this runner; it has {list(groups)} (set "
                "prefill_layers_per_dispatch)",
            )
        elif layers[0] > 0:
            if layers[0] != layered.next_layer or not layered.chunks:
                self.fail(
                    "prefill_layers",
                    f"{layers} doesn't continue a prefill that has reached layer "
                    f"{layered.next_layer if layered.chunks else 'none'}",
                )
            for chunk in self.plan.prefill:
                if chunk not in layered.chunks:
                    self.fail(
                        "prefill",
                        f"the chunk of sequence {chunk.seq_id} hasn't been computed through the "
                        f"layers before {layers[0]}",
                    )

    def prefill(self) -> None:
        chunks, limits = self.plan.prefill, self.capabilities
        num_tokens = sum(chunk.num_tokens for chunk in chunks)
        num_logits = sum(chunk.num_logits for chunk in chunks)
        if num_tokens > limits.prefill_chunk_tokens or num_logits > limits.max_prefill_seqs:
            self.fail(
                "prefill",
                f"{len(chunks)} chunks with {num_tokens} tokens and {num_logits} rows of logits, "
                f"the limits are {limits.max_prefill_seqs} chunks or rows of logits and "
                f"{limits.prefill_chunk_tokens} tokens",
            )
        layers = self.plan.prefill_layers
        is_last_group = layers is None or layers[1] == limits.num_layers
        seen: set[int] = set()
        for chunk in chunks:
            length = self._known("prefill", chunk.seq_id, seen)
            end = chunk.start + chunk.num_tokens
            if chunk.start < 0 or chunk.num_tokens < 1 or end > length:
                self.fail(
                    "prefill",
                    f"positions [{chunk.start}, {end}) of sequence {chunk.seq_id}, which has "
                    f"{length} tokens",
                )
            if chunk.is_sampled and end != length:
                self.fail(
                    "prefill",
                    f"a sample after position {end} of sequence {chunk.seq_id}, which has "
                    f"{length} tokens already",
                )
            self._blocks("prefill", chunk.seq_id, chunk.block_ids, chunk.start, end)
            if chunk.is_sampled and is_last_group:
                self.lengths[chunk.seq_id] = length + 1

    def decode(self) -> None:
        batch = self.plan.decode
        if batch is None:
            return
        sizes = self.capabilities.decode_batch_sizes
        if batch.batch_size not in sizes:
            raise UnsupportedBatchSizeError(
                f"step plan {self.plan.step_id} decodes a batch of {batch.batch_size}; this "
                f"runner decodes batches of {' or '.join(map(str, sizes))}",
                param="decode",
                code="unsupported_batch_size",
            )
        if not 1 <= len(batch.rows) <= batch.batch_size:
            self.fail("decode", f"{len(batch.rows)} live rows in a batch of {batch.batch_size}")
        seen: set[int] = set()
        for row in batch.rows:
            length = self._known("decode", row.seq_id, seen)
            if row.position != length - 1:
                self.fail(
                    "decode",
                    f"position {row.position} of sequence {row.seq_id}, whose newest token is at "
                    f"{length - 1}",
                )
            if row.draft_token_ids:
                self._drafts(row, batch.batch_size)
            end = row.position + 1 + len(row.draft_token_ids)
            self._blocks("decode", row.seq_id, row.block_ids, row.position, end)

    def _drafts(self, row: DecodeRow, batch_size: int) -> None:
        num_draft_tokens = len(row.draft_token_ids)
        most = self.capabilities.max_draft_tokens if batch_size == 1 else 0
        if num_draft_tokens > most:
            self.fail(
                "decode",
                f"sequence {row.seq_id} has {num_draft_tokens} draft tokens, a row of a batch of "
                f"{batch_size} may have {most} here",
            )
        for token_id in row.draft_token_ids:
            if not 0 <= token_id < self.capabilities.vocab_size:
                self.fail(
                    "decode",
                    f"sequence {row.seq_id} has the draft token {token_id}, the vocabulary has "
                    f"ids 0 to {self.capabilities.vocab_size - 1}",
                )

    def _length(self, seq_id: int) -> int | None:
        if seq_id in self.lengths:
            return self.lengths[seq_id]
        sequence = self.sequences.get(seq_id)
        return None if sequence is None else len(sequence.token_ids)

    def _known(self, field: str, seq_id: int, seen: set[int]) -> int:
        length = self._length(seq_id)
        if length is None:
            self.fail(field, f"sequence {seq_id} is unknown; start it first")
        if seq_id in seen:
            self.fail(field, f"sequence {seq_id} occurs twice")
        seen.add(seq_id)
        return length

    def _blocks(
        self, field: str, seq_id: int, block_ids: tuple[int, ...], start: int, end: int
    ) -> None:
        limits = self.capabilities
        if end > limits.max_model_len:
            self.fail(
                field,
                f"sequence {seq_id} reaches {end} tokens, the limit is {limits.max_model_len}",
            )
        needed = -(-end // limits.block_size)
        if len(block_ids) < needed:
            self.fail(
                field,
                f"sequence {seq_id} has {len(block_ids)} blocks of {limits.block_size} tokens, "
                f"{end} tokens need {needed}",
            )
        sequence = self.sequences.get(seq_id)
        # A table is long and stays the same for many steps: it is validated once.
        if sequence is None or sequence.checked_block_ids is not block_ids:
            self._table(field, seq_id, block_ids)
            if sequence is not None:
                sequence.checked_block_ids = block_ids
        for block in block_ids[start // limits.block_size : needed]:
            owner = self.written.setdefault(block, seq_id)
            if owner != seq_id:
                self.fail(
                    field,
                    f"block {block} would be written by the sequences {owner} and {seq_id}",
                )

    def _table(self, field: str, seq_id: int, block_ids: tuple[int, ...]) -> None:
        """Checks a block table independently of the plan."""
        limits = self.capabilities
        most = -(-limits.max_model_len // limits.block_size)
        if len(block_ids) > most:
            self.fail(field, f"sequence {seq_id} has {len(block_ids)} blocks, at most {most} fit")
        if min(block_ids) <= SCRATCH_BLOCK or max(block_ids) >= limits.num_kv_blocks:
            self.fail(
                field,
                f"the blocks of sequence {seq_id} are {min(block_ids)} to {max(block_ids)}, "
                f"expected 1 to {limits.num_kv_blocks - 1} (block {SCRATCH_BLOCK} is the scratch "
                "block)",
            )
        if len(set(block_ids)) != len(block_ids):
            self.fail(field, f"the block table of sequence {seq_id} has a block twice")
