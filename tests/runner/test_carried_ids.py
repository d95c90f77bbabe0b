"""Rows continue from ids that the device has sampled; the host uploads only what isn't there."""

import numpy as np

from qwen3_a8w8.engine.plan import DecodeBatch, DecodeRow, SequenceStart
from qwen3_a8w8.kernels.signature import INT32
from qwen3_a8w8.runner.carried_ids import UPLOADED, CarriedIds, Stage
from qwen3_a8w8.runner.packing import DecodeDispatch
from qwen3_a8w8.runner.sequences import RunnerSequence
from qwen3_a8w8.runner.worker import Worker
from tests.support.runners import GREEDY

PREFILL, DECODE = Stage.PREFILL, Stage.DECODE


def test_an_id_is_found_by_sequence_and_position_until_it_is_overwritten():
    carried = CarriedIds(16)
    carried.put(PREFILL, 3, seq_id=7, position=40)
    carried.put(DECODE, 0, seq_id=8, position=9)
    assert (carried.row_of(7, 40), carried.row_of(8, 9)) == (3, 16)
    assert carried.row_of(7, 41) == carried.row_of(9, 40) == UPLOADED
    carried.overwrite(PREFILL)
    assert (carried.row_of(7, 40), carried.row_of(8, 9)) == (UPLOADED, 16)
    carried.put(DECODE, 1, 8, 10)
    assert (carried.row_of(8, 9), carried.row_of(8, 10)) == (UPLOADED, 17)
    carried.put(DECODE, 1, 9, 5)  # in its place
    assert (carried.row_of(8, 10), carried.row_of(9, 5)) == (UPLOADED, 17)
    carried.forget(9)
    carried.forget(9)
    assert carried.row_of(9, 5) == UPLOADED


def test_a_dispatch_takes_ids_from_the_device_and_uploads_the_others():
    worker = Worker("cpu", is_host_memory=False)
    sampled = worker.alloc((32, 8), INT32)
    on_device = np.zeros((32, 8), np.int32)
    on_device[:, 0] = np.arange(1000, 1032)
    worker.upload(sampled, on_device)
    sequences = {
        seq_id: RunnerSequence(
            SequenceStart(seq_id, (1, 2, 30 + seq_id), (), GREEDY), vocab_size=64
        )
        for seq_id in range(4)
    }
    shape = {"batch_size": 16, "num_rows": 16, "block_size": 16, "max_blocks": 2}
    dispatch = DecodeDispatch(worker, 0, **shape, tensors={}, sampled=sampled)
    carried = CarriedIds(16)
    carried.put(PREFILL, 2, 0, 2)
    carried.put(DECODE, 5, 2, 2)
    carried.put(DECODE, 6, 3, 1)  # not its newest
    batch = DecodeBatch(16, tuple(DecodeRow(seq_id, 2, (seq_id + 1,)) for seq_id in range(4)))
    dispatch.pack(batch, sequences, carried)
    # The host doesn't send what it doesn't have to know.
    assert dispatch.arrays["token_ids"][:4, 0].tolist() == [0, 31, 0, 33]
    address = dispatch.tensors["token_ids"].to_continuous_tensor().data_ptr()
    dispatch.upload()
    ids = dispatch.tensors["token_ids"].to_continuous_tensor()
    assert ids[:, 0].tolist() == [1002, 31, 1021, 33, *[0] * 12]
    assert ids[:, 1:].any().item() is False
    assert ids.data_ptr() == address

    carried.overwrite(DECODE)
    dispatch.pack(DecodeBatch(16, batch.rows[:3]), sequences, carried)
    dispatch.upload()
    ids = dispatch.tensors["token_ids"].to_continuous_tensor()
    assert ids[:, 0].tolist() == [1002, 31, 32, *[0] * 13]

    dispatch.pack_scratch()
    dispatch.upload()
    assert not dispatch.tensors["token_ids"].to_continuous_tensor().any()


def test_a_row_with_draft_tokens_is_uploaded_with_them():
    worker = Worker("cpu", is_host_memory=False)
    sampled = worker.alloc((2, 8), INT32)
    shape = {"batch_size": 1, "num_rows": 8, "block_size": 16, "max_blocks": 2}
    dispatch = DecodeDispatch(worker, 0, **shape, tensors={}, sampled=sampled)
    carried = CarriedIds(1)
    carried.put(DECODE, 0, 4, 2)
    sequences = {4: RunnerSequence(SequenceStart(4, (1, 2, 3), (), GREEDY), vocab_size=64)}
    dispatch.pack(DecodeBatch(1, (DecodeRow(4, 2, (1,), (9, 8)),)), sequences, carried)
    dispatch.upload()
    ids = dispatch.tensors["token_ids"].to_continuous_tensor()
    assert ids.tolist() == [[3, 9, 8, 0, 0, 0, 0, 0]]
