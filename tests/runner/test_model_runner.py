"""The runner against its promises: batch invariance, refusals, scratch-only warm-up."""

import random
from dataclasses import replace

import pytest
import torch

from qwen3_a8w8.engine.plan import (
    DecodeBatch,
    DecodeRow,
    PrefillChunk,
    SequenceStart,
)
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import ConfigError, InvalidRequestError, UnsupportedBatchSizeError
from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from qwen3_a8w8.runner.device_model import DeviceClock
from tests.support.runners import GREEDY, Sequences, make_runner

SAMPLED = SamplingParams(temperature=1.0, top_k=50, top_p=0.9, seed=7, logprobs=3, max_tokens=None)


def prompts(count, seed=0, vocab=512):
    rng = random.Random(seed)
    return [[rng.randrange(vocab) for _ in range(rng.randint(1, 40))] for _ in range(count)]


def logits_rows(runner, count):
    return runner.device.logits_rows(count).to_continuous_tensor().clone()


def test_every_row_of_a_true_b16_equals_its_own_b1_run_bit_for_bit(runner):
    steps, together = 8, Sequences(runner)
    starts = [together.start(i, prompt) for i, prompt in enumerate(prompts(16))]
    tokens, logits = [], []
    for _ in range(steps):
        tokens.append(together.decode(list(range(16)), 16))
        logits.append(logits_rows(runner, 16))
    together.execute(release=tuple(range(16)))
    for i, prompt in enumerate(prompts(16)):
        alone = Sequences(runner)
        assert alone.start(i, prompt) == starts[i]
        for step in range(steps):
            assert alone.decode([i], 1) == [tokens[step][i]]
            assert torch.equal(logits_rows(runner, 1)[0], logits[step][i])
        alone.execute(release=(i,))


@pytest.mark.parametrize("chunks", [[1] * 33, [32, 1], [16, 17], [7, 19, 7]])
def test_prefill_in_chunks_equals_prefill_at_once_bit_for_bit(runner, chunks):
    prompt = [(7 * i * i + 3) % 512 for i in range(33)]
    whole = Sequences(runner)
    first = whole.start(0, prompt, sampling=SAMPLED)
    logits = logits_rows(runner, 1)
    whole.execute(release=(0,))
    assert Sequences(runner).start(1, prompt, sampling=SAMPLED, chunks=chunks) == first
    assert torch.equal(logits_rows(runner, 1), logits)


def test_recomputing_generated_tokens_by_prefill_equals_decoding_them_bit_for_bit(runner):
    sequences = Sequences(runner)
    prompt = prompts(1, seed=4)[0]
    generated = [sequences.start(0, prompt)]
    for _ in range(20):
        generated += sequences.decode([0], 1)
    logits = logits_rows(runner, 1)
    again = Sequences(runner)
    assert again.start(1, prompt + generated[:-1]) == generated[-1]
    assert torch.equal(logits_rows(runner, 1), logits)


def test_partial_b16_equals_full_b16_and_leaves_other_blocks_alone(runner):
    sequences = Sequences(runner)
    for i, prompt in enumerate(prompts(3)):
        sequences.start(i, prompt)
    cache = {name: t.to_continuous_tensor() for name, t in runner.device.cache.items()}
    before = {name: t.clone() for name, t in cache.items()}
    sequences.decode([0, 1, 2], 16)
    written = {
        (sequences.blocks[i][(sequences.lengths[i] - 2) // 16], (sequences.lengths[i] - 2) % 16)
        for i in range(3)
    }
    changed = (cache["k_scale"] != before["k_scale"]).any(dim=2).any(dim=0)  # [blocks, offset]
    assert {(int(b), int(o)) for b, o in changed.nonzero()} == written


@pytest.mark.parametrize("size", range(2, 16))
def test_decode_of_an_uncompiled_batch_size_is_refused_before_anything_happens(runner, size):
    sequences = Sequences(runner)
    for i in range(size):
        sequences.start(i, [1, 2, 3])
    num_bytes = runner.device.worker.num_bytes
    before = {name: t.to_continuous_tensor().clone() for name, t in runner.device.cache.items()}
    rows = tuple(DecodeRow(i, 3, sequences.blocks[i]) for i in range(size))
    with pytest.raises(UnsupportedBatchSizeError, match=f"batch of {size}; .* 1 or 16"):
        sequences.execute(decode=DecodeBatch(size, rows))
    assert runner.device.worker.num_bytes == num_bytes
    for name, tensor in runner.device.cache.items():
        assert torch.equal(tensor.to_continuous_tensor(), before[name])
    assert len(sequences.decode(list(range(size)), 16)) == size


def chunk(seq_id=0, start=0, num_tokens=3, blocks=(1,), is_sampled=True):
    return PrefillChunk(seq_id, start, num_tokens, blocks, is_sampled)


def begin(seq_id=0, ids=(1, 2, 3)):
    return SequenceStart(seq_id, ids, (), GREEDY)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prefill": (chunk(5),)}, "prefill: sequence 5 is unknown"),
        ({"start": (begin(0, ()),)}, "empty prompt"),
        ({"start": (begin(0, (1, 512)),)}, "token id 512, the vocabulary has ids 0 to 511"),
        ({"start": (begin(0, (-1,)),)}, "token id -1"),
        ({"start": (begin(), begin())}, "is live already"),
        ({"start": (begin(),), "prefill": (chunk(num_tokens=4),)}, r"positions \[0, 4\)"),
        ({"start": (begin(),), "prefill": (chunk(num_tokens=2),)}, "a sample after position 2"),
        ({"start": (begin(),), "prefill": (chunk(blocks=(0,)),)}, "scratch block"),
        ({"start": (begin(),), "prefill": (chunk(blocks=(128,)),)}, "expected 1 to 127"),
        ({"start": (begin(),), "prefill": (chunk(blocks=()),)}, "has 0 blocks"),
        ({"start": (begin(),), "prefill": (chunk(blocks=(4, 4)),)}, "has a block twice"),
        (
            {"start": (begin(0), begin(1)), "prefill": (chunk(0), chunk(1))},
            "block 1 would be written by the sequences 0 and 1",
        ),
        ({"start": (begin(),), "prefill": (chunk(), chunk())}, "occurs twice"),
        (
            {"start": (begin(),), "decode": DecodeBatch(1, (DecodeRow(0, 3, (1,)),))},
            "position 3 of sequence 0, whose newest token is at 2",
        ),
        ({"decode": DecodeBatch(16, ())}, "0 live rows"),
    ],
)
def test_invalid_plan_is_refused_and_the_runner_continues(runner, fields, message):
    sequences = Sequences(runner)
    with pytest.raises(InvalidRequestError, match=message):
        sequences.execute(**fields)
    assert 0 <= sequences.start(9, [1, 2, 3]) < 512


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (((1,), (0,)), "the blocks of sequence 1 are 0 to 0, expected 1 to 127"),
        (((1,), (2, 2)), "the block table of sequence 1 has a block twice"),
        (((1,), (1,)), "block 1 would be written by the sequences 0 and 1"),
    ],
)
def test_table_that_was_right_once_does_not_hide_a_wrong_one(runner, tables, message):
    sequences = Sequences(runner)
    starts = (begin(0), begin(1))
    sequences.execute(start=starts, prefill=(chunk(0), chunk(1, blocks=(2,))))
    right = tuple(DecodeRow(i, 3, table) for i, table in enumerate([(1,), (2,)]))
    sequences.execute(decode=DecodeBatch(16, right))
    wrong = tuple(DecodeRow(i, 4, table) for i, table in enumerate(tables))
    with pytest.raises(InvalidRequestError, match=message):
        sequences.execute(decode=DecodeBatch(16, wrong))
    again = tuple(row._replace(position=4) for row in right)
    assert len(sequences.execute(decode=DecodeBatch(16, again)).sampled) == 2
    with pytest.raises(InvalidRequestError, match="position 4 of sequence 0, whose newest"):
        sequences.execute(decode=DecodeBatch(16, again))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_model_len": 4096}, "max_model_len is 4096, but the checkpoint supports 2048"),
        ({"num_kv_blocks": None, "kv_cache_bytes": 10}, "kv_cache_bytes leaves room for 0"),
        ({"num_kv_blocks": 10**9}, "num_kv_blocks requires 1000000000 KV blocks"),
        (
            {"max_model_len": 2048},
            "max_model_len is 2048, but the KV cache has 127 blocks .* holds 2032 tokens",
        ),
    ],
)
def test_settings_that_do_not_fit_the_model_or_memory_are_refused(random_model, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_runner(random_model, CpuBackend(), **settings)


def test_checkpoints_own_length_above_the_cache_is_logged_and_kept(random_model, caplog):
    runner = make_runner(random_model, CpuBackend(), num_kv_blocks=9)
    assert runner.capabilities.max_model_len == 2048
    assert "holds 128 tokens; sequences are limited to that, not to the 2048" in caplog.text
    runner.close()


@pytest.fixture(scope="module")
def drafting_runner(random_model):
    """Accepts draft tokens, and prefills one layer per dispatch."""
    runner = make_runner(
        random_model, CpuBackend(), prefill_layers_per_dispatch=1, enable=("prompt_lookup",)
    )
    yield runner
    runner.close()


@pytest.mark.parametrize("num_right", range(8))
def test_draft_tokens_are_accepted_up_to_the_first_wrong_one(drafting_runner, num_right):
    runner, blocks = drafting_runner, tuple(range(1, 9))
    prompt = tuple(prompts(1, seed=2)[0])
    sampling = SamplingParams(temperature=1.0, seed=3, repetition_penalty=1.2, logprobs=2)
    sequences = Sequences(runner)
    start = SequenceStart(0, prompt, (), sampling)
    whole = PrefillChunk(0, 0, len(prompt), blocks, is_sampled=True)
    results = [sequences.execute(start=(start,), prefill=(whole,))]
    for position in range(len(prompt), len(prompt) + 9):
        row = DecodeRow(0, position, blocks)
        results.append(sequences.execute(decode=DecodeBatch(1, (row,))))
    truth = [result.sampled[0] for result in results]

    sequences.execute(release=(0,), start=(replace(start, seq_id=1),))
    first = sequences.execute(prefill=(replace(whole, seq_id=1),)).sampled
    drafts = [token.token_id for token in truth[1:8]]
    if num_right < 7:
        drafts[num_right] ^= 1
    row = DecodeRow(1, len(prompt), blocks, tuple(drafts))
    kept = sequences.execute(decode=DecodeBatch(1, (row,))).sampled
    row = DecodeRow(1, len(prompt) + len(kept), blocks)
    after = sequences.execute(decode=DecodeBatch(1, (row,))).sampled
    assert len(kept) == num_right + 1
    expected = [token._replace(seq_id=1) for token in truth[: num_right + 3]]
    assert [*first, *kept, *after] == expected
    sequences.execute(release=(1,))


def decode_one(drafts=(), blocks=(1,), size=1):
    start = {"start": (begin(),), "prefill": (chunk(),)}
    row = DecodeRow(0, 3, blocks, drafts)
    return {**start, "decode": DecodeBatch(size, (row,))}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            decode_one((1,) * 8),
            "decode: sequence 0 has 8 draft tokens, a row of a batch of 1 may have 7",
        ),
        (decode_one((1,), size=16), "has 1 draft tokens, a row of a batch of 16 may have 0"),
        (decode_one((512,)), "the draft token 512, the vocabulary has ids 0 to 511"),
        (
            {
                "start": (begin(0, tuple(range(12))),),
                "prefill": (chunk(num_tokens=12),),
                "decode": DecodeBatch(1, (DecodeRow(0, 12, (1,), (1, 2, 3, 4)),)),
            },
            "has 1 blocks of 16 tokens, 17 tokens need 2",
        ),
        (
            {"start": (begin(),), "prefill": (chunk(),), "prefill_layers": (0, 2)},
            r"prefill_layers: \(0, 2\) isn't a group .* it has \[\(0, 1\), \(1, 2\)\]",
        ),
        (
            {"start": (begin(),), "prefill": (chunk(),), "prefill_layers": (1, 2)},
            r"\(1, 2\) doesn't continue a prefill that has reached layer none",
        ),
    ],
)
def test_plan_with_invalid_draft_tokens_or_layers_is_refused(drafting_runner, fields, message):
    sequences = Sequences(drafting_runner)
    with pytest.raises(InvalidRequestError, match=message):
        sequences.execute(**fields)
    assert 0 <= sequences.start(9, [1, 2, 3]) < 512
    sequences.execute(release=(9,))


def test_chunk_that_skipped_the_first_layers_is_refused(drafting_runner):
    sequences = Sequences(drafting_runner)
    sequences.execute(start=(begin(0), begin(1)), prefill=(chunk(0),), prefill_layers=(0, 1))
    stranger = chunk(1, blocks=(2,))
    with pytest.raises(
        InvalidRequestError, match="chunk of sequence 1 hasn't been computed through"
    ):
        sequences.execute(prefill=(chunk(0), stranger), prefill_layers=(1, 2))
    result = sequences.execute(prefill=(chunk(0),), prefill_layers=(1, 2))
    assert [token.seq_id for token in result.sampled] == [0]
    sequences.execute(release=(0, 1))


def test_layers_without_groups_are_refused(runner):
    sequences = Sequences(runner)
    with pytest.raises(InvalidRequestError, match=r"isn't a group of layers .* it has \[\]"):
        sequences.execute(start=(begin(),), prefill=(chunk(),), prefill_layers=(0, 1))


def test_device_clock_separates_work_from_waiting():
    clock = DeviceClock()
    clock.add(10.0, 11.0)
    assert clock.end_step() == (1.0, 0.0)
    assert clock.end_step() == (0.0, 0.0)  # a step without work
    clock.add(11.5, 13.0)
    clock.add(13.25, 14.0)
    assert clock.end_step() == (2.25, 0.75)


def test_close_gives_all_device_memory_back_and_may_be_repeated(own_runner):
    assert own_runner.device.worker.num_bytes > 0
    own_runner.close()
    own_runner.close()
    assert own_runner.device.worker.num_bytes == 0
