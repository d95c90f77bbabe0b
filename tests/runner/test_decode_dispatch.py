"""Inputs that are written in place must say what inputs written from nothing would say."""

import numpy as np
import pytest

from qwen3_a8w8.engine.plan import DecodeBatch, DecodeRow, SequenceStart
from qwen3_a8w8.runner.packing import DecodeDispatch
from qwen3_a8w8.runner.sequences import RunnerSequence
from qwen3_a8w8.runner.worker import Worker
from tests.support.runners import GREEDY

BLOCK_SIZE, MAX_BLOCKS = 16, 4
IDS = {seq_id: tuple(range(100 * seq_id, 100 * seq_id + 50)) for seq_id in range(1, 5)}
SEQUENCES = {
    seq_id: RunnerSequence(SequenceStart(seq_id, ids, (), GREEDY), vocab_size=64)
    for seq_id, ids in IDS.items()
}


def make_dispatch(batch_size, num_rows):
    return DecodeDispatch(
        Worker("cpu"),
        0,
        batch_size=batch_size,
        num_rows=num_rows,
        block_size=BLOCK_SIZE,
        max_blocks=MAX_BLOCKS,
        tensors={},
    )


def expected_arrays(batch, num_rows):
    """Row by row, by the words of the contract."""
    arrays = {
        "token_ids": np.zeros((batch.batch_size, 8), int),
        "num_active": np.zeros(1, int),
        "positions": np.zeros(num_rows, int),
        "seq_lens": np.zeros(num_rows, int),
        "slot_mapping": np.arange(num_rows),  # block 0 is the scratch block
        "block_tables": np.zeros((num_rows, MAX_BLOCKS), int),
    }
    index = 0
    for number, row in enumerate(batch.rows):
        arrays["token_ids"][number, 0] = IDS[row.seq_id][row.position]
        for column, draft in enumerate(row.draft_token_ids, start=1):
            arrays["token_ids"][number, column] = draft
        for position in range(row.position, row.position + 1 + len(row.draft_token_ids)):
            arrays["positions"][index] = position
            arrays["seq_lens"][index] = position + 1
            block = row.block_ids[position // BLOCK_SIZE]
            arrays["slot_mapping"][index] = block * BLOCK_SIZE + position % BLOCK_SIZE
            arrays["block_tables"][index, : len(row.block_ids)] = row.block_ids
            index += 1
    arrays["num_active"][0] = index
    return arrays


LONG, SHORT = (3, 9, 4), (7,)
STEPS_OF_16 = [
    [DecodeRow(1, 31, LONG), DecodeRow(2, 8, SHORT)],
    [DecodeRow(1, 32, LONG), DecodeRow(2, 9, SHORT)],
    [DecodeRow(1, 33, LONG), DecodeRow(2, 10, (7, 8)), DecodeRow(3, 5, (2,))],
    [DecodeRow(3, 6, (2,)), DecodeRow(1, 34, LONG)],
    [DecodeRow(1, 3, SHORT), DecodeRow(4, 46, (1, 2, 5))],
    [DecodeRow(4, 47, (1, 2, 5))],
]
STEPS_OF_1 = [
    [DecodeRow(1, 31, LONG, (5, 6, 7))],
    [DecodeRow(1, 33, LONG)],
    [DecodeRow(1, 34, LONG, (8,))],
    [DecodeRow(2, 1, SHORT, (1, 2, 3, 4, 5, 6, 7))],
]


@pytest.mark.parametrize(
    ("batch_size", "num_rows", "steps"), [(16, 16, STEPS_OF_16), (1, 8, STEPS_OF_1)]
)
def test_every_step_is_packed_as_if_it_were_the_first(batch_size, num_rows, steps):
    dispatch = make_dispatch(batch_size, num_rows)
    for rows in [*steps, *reversed(steps)]:
        batch = DecodeBatch(batch_size, tuple(rows))
        dispatch.pack(batch, SEQUENCES)
        for name, expected in expected_arrays(batch, num_rows).items():
            assert dispatch.arrays[name].tolist() == expected.tolist(), name


def test_scratch_rows_are_at_the_start_of_the_scratch_block():
    dispatch = make_dispatch(16, 16)
    dispatch.pack(DecodeBatch(16, tuple(STEPS_OF_16[0])), SEQUENCES)
    dispatch.pack_scratch()
    assert {name: array.tolist() for name, array in dispatch.arrays.items()} == {
        "token_ids": [[0] * 8] * 16,
        "num_active": [16],
        "positions": [0] * 16,
        "seq_lens": [1] * 16,
        "slot_mapping": list(range(16)),
        "block_tables": [[0] * MAX_BLOCKS] * 16,
    }
