"""Decode through the runner: ids stay on the device between steps, at captured addresses."""

import numpy as np
import pytest
import torch
from torch_npu.npu import graphs as emulated_graphs

from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
from qwen3_a8w8.checkpoint.resolve import resolve_model
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.kernels.npu.backend import NpuBackend
from qwen3_a8w8.runner.model_runner import ModelRunner
from tests.support.runners import GREEDY, Sequences

PROMPTS = {0: [5, 9, 2, 77], 1: [8, 8, 300], 2: [1, 2, 3, 4, 5, 6, 7]}
DRAWN = SamplingParams(temperature=0.8, top_k=20, seed=5, max_tokens=None)
SAMPLING = {0: GREEDY, 1: DRAWN, 2: GREEDY}


@pytest.fixture(scope="module")
def runner():
    config = EngineConfig(
        device="npu",
        block_size=32,
        num_kv_blocks=80,
        max_model_len=128,
        prefill_chunk_tokens=64,
        enable=("skip_self_check",),
    )
    with open_checkpoint(resolve_model("demo")) as checkpoint:
        runner = ModelRunner(checkpoint, config, NpuBackend(num_threads=1))
    yield runner
    runner.close()


@pytest.fixture
def sequences(runner):
    """Three sequences, prefilled; their ids so far are `told`."""
    sequences = Sequences(runner)
    sequences.told = {
        seq_id: [*prompt, sequences.start(seq_id, prompt, sampling=SAMPLING[seq_id])]
        for seq_id, prompt in PROMPTS.items()
    }
    yield sequences
    sequences.execute(release=(*PROMPTS, 99))


def decode(sequences, seq_ids, batch_size):
    tokens = sequences.decode(seq_ids, batch_size)
    for seq_id, token in zip(seq_ids, tokens, strict=True):
        sequences.told[seq_id].append(token)
    return tokens


def logits_after(runner, sequences, ids):
    """The logits that follow `ids`, by prefill."""
    sequences.start(99, ids)
    row = runner.device.logits_rows(1).to_continuous_tensor()[0].clone()
    sequences.execute(release=(99,))
    return row


def test_rows_continue_from_what_lies_on_the_device(runner, sequences):
    """Ids that are changed there, behind the host's back, are the ones that count."""
    for _ in range(3):
        decode(sequences, [0, 1, 2], 16)
    table = runner.device.sampled_ids.to_continuous_tensor()
    newest = [told[-1] for told in sequences.told.values()]
    assert table[16:19, 0].tolist() == newest
    changed = [[*told[:-1], (told[-1] + 100 + seq)] for seq, told in sequences.told.items()]
    table[16:19, 0] = torch.tensor([ids[-1] for ids in changed], dtype=torch.int32)
    sequences.decode([0, 1, 2], 16)
    logits = runner.device.logits_rows(3).to_continuous_tensor().clone()
    for row, ids in enumerate(changed):
        assert torch.equal(logits[row], logits_after(runner, sequences, ids))


def test_steps_replay_one_graph_on_the_same_addresses(runner, sequences):
    dispatch = runner.device.decode_dispatch(16)
    ids = dispatch.tensors["token_ids"].to_continuous_tensor()
    addresses = ids.data_ptr(), runner.device.sampled_ids.to_continuous_tensor().data_ptr()
    for _ in range(2):
        decode(sequences, [0, 1, 2], 16)  # captured by now, unless it was before
    emulated_graphs.journal.clear()
    for step in range(4):
        rows = [0, 1, 2][: 3 - step % 2]
        before = [sequences.told[seq_id][-1] for seq_id in rows]
        decode(sequences, rows, 16)
        assert ids[:, 0].tolist()[: len(rows)] == before
        carry = dispatch.arrays["carry_from"].tolist()
        # Sequence 2 missed a step, in which its place was overwritten.
        has_missed = len(rows) == 3 and step > 0
        assert carry[: len(rows)] == [16, 17, -1 if has_missed else 18][: len(rows)]
        assert carry[len(rows) :] == [-1] * (16 - len(rows))
        assert dispatch.arrays["token_ids"][: len(rows), 0].any() == has_missed
    assert [kind for kind, _ in emulated_graphs.journal] == ["update", "replay"] * 4
    assert addresses == (
        dispatch.tensors["token_ids"].to_continuous_tensor().data_ptr(),
        runner.device.sampled_ids.to_continuous_tensor().data_ptr(),
    )
    for seq_id, told in sequences.told.items():
        again = Sequences(runner)
        again.start(99, told[:-1], sampling=SAMPLING[seq_id])
        row = runner.device.logits_rows(1).to_continuous_tensor()[0]
        if SAMPLING[seq_id] is GREEDY:
            assert int(np.argmax(row.numpy())) == told[-1]
        again.execute(release=(99,))


def test_ids_of_a_batch_of_1_after_other_steps_are_uploaded(runner, sequences):
    dispatch = runner.device.decode_dispatch(1)
    decode(sequences, [0], 1)
    assert dispatch.arrays["carry_from"].tolist() == [-1]  # two prompts have been sampled since
    decode(sequences, [0], 1)
    assert dispatch.arrays["carry_from"].tolist() == [16]
    decode(sequences, [2], 1)
    assert dispatch.arrays["carry_from"].tolist() == [0]  # the last one that was prefilled
    decode(sequences, [0], 1)
    assert dispatch.arrays["carry_from"].tolist() == [-1]
    logits = runner.device.logits_rows(1).to_continuous_tensor()[0].clone()
    assert torch.equal(logits, logits_after(runner, sequences, sequences.told[0][:-1]))


def test_a_sequence_that_is_registered_again_takes_nothing_from_before(runner, sequences):
    decode(sequences, [0, 1], 16)
    told = sequences.told[0]
    sequences.execute(release=(0,))
    assert runner.device.carried.row_of(0, len(told) - 1) == -1
    assert runner.device.carried.row_of(1, len(sequences.told[1]) - 1) == 17
    again = Sequences(runner)
    assert again.start(0, told[:-1]) == told[-1]
