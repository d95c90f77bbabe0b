"""Packs plans into input arrays, in memory that is reused by the next dispatch.

Arrays have the names and shapes of the parameters in `model/qwen3.py`, and are written on the
host as numpy arrays. On a CPU they are the device memory itself; elsewhere one copy transfers a
whole block. `validation.py` checks plans first. `sampler.py` packs the sampler's inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen3_a8w8.config import SCRATCH_BLOCK, TOKENS_PER_ROW
from qwen3_a8w8.engine.plan import DecodeBatch, PrefillChunk
from qwen3_a8w8.kernels.signature import INT32, UINT8, DType
from qwen3_a8w8.runner.carried_ids import UPLOADED, CarriedIds
from qwen3_a8w8.runner.sequences import RunnerSequence
from qwen3_a8w8.runner.worker import NUMPY_DTYPES, Worker, WorkerTensor

_ALIGNMENT = 64
_FIRST_CAPACITY = 64


class InputBlock:
    """Inputs of fixed shapes in one allocation.

    Attributes:
        arrays: host arrays to write, by name; initially zeros.
        tensors: the same as arguments of a callable.
    """

    def __init__(self, worker: Worker, layout: Mapping[str, tuple[DType, tuple[int, ...]]]) -> None:
        """Allocates the inputs.

        Args:
            worker: owns the memory.
            layout: dtype and shape by name.
        """
        starts: dict[str, int] = {}
        num_bytes = 0
        for name, (dtype, shape) in layout.items():
            starts[name] = num_bytes
            num_bytes += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        self._worker = worker
        self._memory = worker.alloc((num_bytes,), UINT8)
        host = worker.host_array(self._memory)
        self._staging: NDArray[Any] | None = None
        if host is None:
            host = self._staging = np.zeros(num_bytes, np.uint8)
        self.arrays: dict[str, NDArray[Any]] = {}
        self.tensors: dict[str, WorkerTensor] = {}
        for name, (dtype, shape) in layout.items():
            start = starts[name]
            end = start + math.prod(shape) * dtype.itemsize
            self.arrays[name] = host[start:end].view(NUMPY_DTYPES[dtype]).reshape(shape)
            offset = start // dtype.itemsize
            self.tensors[name] = WorkerTensor(self._memory.allocation, dtype, shape, offset)

    def upload(self) -> None:
        """Copies the arrays to the device."""
        if self._staging is not None:
            self._worker.upload(self._memory, self._staging)

    def free(self) -> None:
        """Frees the memory; idempotent."""
        self._worker.free(self._memory)


class GrowingInput:
    """A list of numbers of any length, in memory that doubles when it is too small.

    Attributes:
        tensor: [capacity]; entries beyond the list are undefined.
        host: the list, as it was written last.
    """

    def __init__(self, worker: Worker, dtype: DType) -> None:
        """Allocates memory for a few numbers."""
        self._worker = worker
        self._dtype = dtype
        self.tensor = worker.alloc((_FIRST_CAPACITY,), dtype)
        self.host: NDArray[Any] = np.zeros(0, NUMPY_DTYPES[dtype])

    def write(self, values: Sequence[int] | Sequence[float] | NDArray[Any]) -> bool:
        """Uploads the list.

        Returns:
            Whether `tensor` was replaced.
        """
        array = self.host = np.asarray(values, NUMPY_DTYPES[self._dtype])
        capacity = self.tensor.num_elements
        has_grown = array.size > capacity
        if has_grown:
            self.free()
            while capacity < array.size:
                capacity *= 2
            self.tensor = self._worker.alloc((capacity,), self._dtype)
        self._worker.upload(self.tensor, array)
        return has_grown

    def free(self) -> None:
        """Frees the memory; idempotent."""
        self._worker.free(self.tensor)


Arrays = dict[str, NDArray[np.generic]]


def slots_of(
    block_ids: Sequence[int], start: int, num_tokens: int, block_size: int
) -> NDArray[np.int32]:
    """Cache slots of the positions [start, start + num_tokens) of a sequence.

    Args:
        block_ids: the sequence's block table.
        start: first position.
        num_tokens: number of positions.
        block_size: tokens per block.

    Returns:
        [num_tokens] int32, block * block_size + offset.
    """
    positions = np.arange(start, start + num_tokens, dtype=np.int32)
    blocks = np.asarray(block_ids, dtype=np.int32)[positions // block_size]
    slots: NDArray[np.int32] = blocks * np.int32(block_size) + positions % np.int32(block_size)
    return slots


def pack_prefill(
    chunks: Sequence[PrefillChunk],
    sequences: Mapping[int, RunnerSequence],
    block_size: int,
    max_blocks: int,
) -> Arrays:
    """Packs chunks one after the other, without padding.

    Args:
        chunks: at least one.
        sequences: live sequences by id.
        block_size: tokens per block.
        max_blocks: width of the block tables.

    Returns:
        token_ids, positions, context_lens, seq_index, slot_mapping [num_tokens] int32,
        block_tables [num_chunks, max_blocks] int32, logits_indices [num_logits] int32: the last
        token of chunks that are sampled, every token of chunks with prompt log-probabilities.
    """
    ids, positions, seq_index, slots = [], [], [], []
    logits_indices: list[int] = []
    num_tokens = 0
    for row, chunk in enumerate(chunks):
        end = chunk.start + chunk.num_tokens
        ids.append(np.asarray(sequences[chunk.seq_id].token_ids[chunk.start : end], np.int32))
        positions.append(np.arange(chunk.start, end, dtype=np.int32))
        seq_index.append(np.full(chunk.num_tokens, row, np.int32))
        slots.append(slots_of(chunk.block_ids, chunk.start, chunk.num_tokens, block_size))
        num_tokens += chunk.num_tokens
        if chunk.has_prompt_logprobs:
            logits_indices.extend(range(num_tokens - chunk.num_tokens, num_tokens))
        elif chunk.is_sampled:
            logits_indices.append(num_tokens - 1)
    position_array = np.concatenate(positions)
    return {
        "token_ids": np.concatenate(ids),
        "positions": position_array,
        "context_lens": position_array + np.int32(1),
        "seq_index": np.concatenate(seq_index),
        "slot_mapping": np.concatenate(slots),
        "block_tables": _block_tables([c.block_ids for c in chunks], len(chunks), max_blocks),
        "logits_indices": np.asarray(logits_indices, np.int32),
    }


def _block_tables(
    tables: Sequence[Sequence[int]], num_rows: int, max_blocks: int
) -> NDArray[np.int32]:
    packed = np.full((num_rows, max_blocks), SCRATCH_BLOCK, np.int32)
    for row, table in enumerate(tables):
        packed[row, : len(table)] = table
    return packed


class DecodeDispatch:
    """The decode callable with its inputs: live rows first, idle rows at distinct scratch slots.

    Attributes:
        arrays: the inputs on the host by name: token_ids [B, 8], num_active [1], positions,
            seq_lens, slot_mapping [num_rows], block_tables [num_rows, max_blocks], all int32. On a
            device with memory of its own also carry_from [B]: rows of the sampled ids that
            replace those of token_ids on the device, or UPLOADED.
        tensors: the same on the device; their addresses never change.
    """

    def __init__(
        self,
        worker: Worker,
        callable_id: int,
        *,
        batch_size: int,
        num_rows: int,
        block_size: int,
        max_blocks: int,
        tensors: Mapping[str, WorkerTensor],
        sampled: WorkerTensor | None = None,
    ) -> None:
        """Allocates input memory.

        Args:
            worker: runs the callable.
            callable_id: of decode.
            batch_size: sequences.
            num_rows: the batch size, or 8 in a batch of 1 with draft tokens.
            block_size: tokens per block; at least `num_rows`.
            max_blocks: width of the block tables.
            tensors: the other arguments, cache and logits.
            sampled: the ids that `CarriedIds` knows, [*, 8] int32; None: the host writes all ids.
        """
        layout = {
            "token_ids": (INT32, (batch_size, TOKENS_PER_ROW)),
            "num_active": (INT32, (1,)),
            "positions": (INT32, (num_rows,)),
            "seq_lens": (INT32, (num_rows,)),
            "slot_mapping": (INT32, (num_rows,)),
            "block_tables": (INT32, (num_rows, max_blocks)),
        }
        args = tuple(layout)
        if sampled is not None:
            layout["carry_from"] = (INT32, (batch_size,))
        self._worker = worker
        self._sampled = sampled
        self._inputs = InputBlock(worker, layout)
        self.arrays = self._inputs.arrays
        self.tensors = self._inputs.tensors
        given = {name: self.tensors[name] for name in args}
        self._call = worker.prepare(callable_id, {**given, **tensors}, self.arrays)
        self._block_size = block_size
        self._scratch_slots = SCRATCH_BLOCK * block_size + np.arange(num_rows, dtype=np.int32)
        self._tables: list[tuple[int, ...]] = [()] * num_rows
        self.arrays["block_tables"][:] = SCRATCH_BLOCK
        self._clear()

    def pack(
        self,
        batch: DecodeBatch,
        sequences: Mapping[int, RunnerSequence],
        carried: CarriedIds | None = None,
    ) -> None:
        """Writes the inputs of a step.

        Args:
            batch: its rows are the live ones; in a batch of 1 draft tokens are the rows after it.
            sequences: live sequences by id.
            carried: ids that are on the device; the host has only those of other sequences to
                write. None: it writes all.
        """
        arrays, rows, size = self.arrays, batch.rows, self._block_size
        ids = [sequences[row.seq_id].token_ids[row.position] for row in rows]
        places = [row.position for row in rows]
        tables = [row.block_ids for row in rows]
        drafts = rows[0].draft_token_ids
        for _ in drafts:
            places.append(places[-1] + 1)
            tables.append(tables[0])
        count = len(places)
        if arrays["num_active"][0] != count:
            self._clear()
            arrays["num_active"][0] = count
            tables += [()] * (len(self._tables) - count)
        if self._sampled is not None:
            places_of_ids = [UPLOADED] * len(ids)
            if carried is not None and not drafts:  # draft tokens share the row with its id
                places_of_ids = [carried.row_of(row.seq_id, row.position) for row in rows]
            arrays["carry_from"][: len(ids)] = places_of_ids
            ids = [
                token_id if at == UPLOADED else 0
                for token_id, at in zip(ids, places_of_ids, strict=True)
            ]
        arrays["token_ids"][: len(ids), 0] = ids
        if drafts:
            arrays["token_ids"][0, 1 : 1 + len(drafts)] = drafts
        positions = arrays["positions"]
        positions[:count] = places
        np.add(positions[:count], 1, out=arrays["seq_lens"][:count])
        arrays["slot_mapping"][:count] = [
            table[place // size] * size + place % size
            for place, table in zip(places, tables, strict=False)
        ]
        for index, table in enumerate(tables):
            if table is not self._tables[index]:
                self._write_table(index, table)

    def pack_scratch(self, context_len: int = 1) -> None:
        """Makes all rows live, at position 0 of the scratch block, which no sequence uses.

        Args:
            context_len: positions that a row attends to, all of them in the scratch block.
        """
        self._clear()
        self.arrays["num_active"][0] = len(self._tables)
        self.arrays["seq_lens"][:] = context_len
        for index in range(len(self._tables)):
            self._write_table(index, ())

    def upload(self) -> None:
        """Copies the packed inputs to the device, and on it the ids that are there."""
        self._inputs.upload()
        if self._sampled is not None and (self.arrays["carry_from"] != UPLOADED).any():
            tensors = self.tensors
            self._worker.select_rows(tensors["token_ids"], self._sampled, tensors["carry_from"])

    def run(self) -> None:
        """Dispatches; the logits of the live rows are written."""
        self._call()

    def free(self) -> None:
        """Frees the input memory; idempotent."""
        self._inputs.free()

    def _clear(self) -> None:
        """Makes all rows idle; callers write the block tables."""
        for name in ("token_ids", "num_active", "positions", "seq_lens"):
            self.arrays[name][:] = 0
        if self._sampled is not None:
            self.arrays["carry_from"][:] = UPLOADED
        self.arrays["slot_mapping"][:] = self._scratch_slots

    def _write_table(self, index: int, table: tuple[int, ...]) -> None:
        row = self.arrays["block_tables"][index]
        row[: len(table)] = table
        row[len(table) : len(self._tables[index])] = SCRATCH_BLOCK
        self._tables[index] = table
