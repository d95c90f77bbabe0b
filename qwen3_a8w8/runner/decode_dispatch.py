"""Decode dispatches of one batch size: rows into input arrays, then one call.

From step to step a row's table of blocks mostly stays what it was, and is then not written
again. Everything is checked before (`validation.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qwen3_a8w8.config import SCRATCH_BLOCK, TOKENS_PER_ROW
from qwen3_a8w8.engine.plan import DecodeBatch
from qwen3_a8w8.kernels.signature import INT32
from qwen3_a8w8.runner.inputs import InputBlock
from qwen3_a8w8.runner.sequences import RunnerSequence
from qwen3_a8w8.runner.worker import Worker
from qwen3_a8w8.runner.worker_tensor import WorkerTensor


class DecodeDispatch:
    """The decode callable with its inputs: live rows first, idle rows at distinct scratch slots.

    Attributes:
        arrays: the inputs on the host by name: token_ids [B, 8], num_active [1], positions,
            seq_lens, slot_mapping [num_rows], block_tables [num_rows, max_blocks], all int32.
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
    ) -> None:
        """Takes input memory.

        Args:
            worker: runs it.
            callable_id: of decode.
            batch_size: sequences.
            num_rows: the batch size, or 8 in a batch of 1 that takes drafts.
            block_size: tokens per block; at least `num_rows`.
            max_blocks: width of the block tables.
            tensors: the other arguments, cache and logits.
        """
        self._inputs = InputBlock(
            worker,
            {
                "token_ids": (INT32, (batch_size, TOKENS_PER_ROW)),
                "num_active": (INT32, (1,)),
                "positions": (INT32, (num_rows,)),
                "seq_lens": (INT32, (num_rows,)),
                "slot_mapping": (INT32, (num_rows,)),
                "block_tables": (INT32, (num_rows, max_blocks)),
            },
        )
        self.arrays = self._inputs.arrays
        self._call = worker.prepare(callable_id, {**self._inputs.tensors, **tensors})
        self._block_size = block_size
        self._scratch_slots = SCRATCH_BLOCK * block_size + np.arange(num_rows, dtype=np.int32)
        self._tables: list[tuple[int, ...]] = [()] * num_rows
        self.arrays["block_tables"][:] = SCRATCH_BLOCK
        self._clear()

    def pack(self, batch: DecodeBatch, sequences: Mapping[int, RunnerSequence]) -> None:
        """Writes the inputs of a step.

        Args:
            batch: its rows are the live ones, and the drafts of a batch of 1 rows after them.
            sequences: live sequences by id.
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

    def pack_scratch(self) -> None:
        """Makes all rows live, at position 0 of the scratch block, where they harm nobody."""
        self._clear()
        self.arrays["num_active"][0] = len(self._tables)
        self.arrays["seq_lens"][:] = 1
        for index in range(len(self._tables)):
            self._write_table(index, ())

    def upload(self) -> None:
        """Makes the device see what was packed."""
        self._inputs.upload()

    def run(self) -> None:
        """Dispatches; the logits of the live rows are written."""
        self._call()

    def free(self) -> None:
        """Gives the input memory back; idempotent."""
        self._inputs.free()

    def _clear(self) -> None:
        """Makes all rows idle; their tables are left to whoever writes them."""
        for name in ("token_ids", "num_active", "positions", "seq_lens"):
            self.arrays[name][:] = 0
        self.arrays["slot_mapping"][:] = self._scratch_slots

    def _write_table(self, index: int, table: tuple[int, ...]) -> None:
        row = self.arrays["block_tables"][index]
        row[: len(table)] = table
        row[len(table) : len(self._tables[index])] = SCRATCH_BLOCK
        self._tables[index] = table
