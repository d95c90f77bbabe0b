"""The first dispatches: every compiled size once, inside the scratch block.

They make scratch arenas grow to their final size before the KV cache is sized,
and measure the decode step of each batch size for the router's choice between
a partial B16 and single steps.

All tokens are alike and sit at position 0, so wherever two of them share a slot
of the scratch block they write the same bytes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from qwen3_a8w8.config import SCRATCH_BLOCK
from qwen3_a8w8.engine.plan import PrefillChunk, SequenceStart
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.runner.packing import Arrays
from qwen3_a8w8.runner.sequences import RunnerSequence

if TYPE_CHECKING:
    from qwen3_a8w8.runner.model_runner import ModelRunner

NUM_TIMED_STEPS = 3


def warm_up(runner: ModelRunner) -> tuple[float, dict[int, float]]:
    """Runs the largest prefill chunk and every decode size, each with its sampling.

    Args:
        runner: compiled, with a cache of at least the scratch block.

    Returns:
        Seconds per token of the prefill chunk, and of the fastest of a few decode steps by batch
        size.
    """
    num_tokens = runner.config.prefill_chunk_tokens
    begin = time.perf_counter()
    _prefill(runner, num_tokens)
    token_s = (time.perf_counter() - begin) / num_tokens
    sizes = sorted(runner.config.decode_batch_sizes)
    return token_s, {size: _timed_decode(runner, size) for size in sizes}


def _scratch_slots(runner: ModelRunner, count: int) -> np.ndarray:
    block_size = runner.config.block_size
    return (SCRATCH_BLOCK * block_size + np.arange(count) % block_size).astype(np.int32)


def _prefill(runner: ModelRunner, num_tokens: int) -> None:
    arrays: Arrays = {
        "token_ids": np.zeros(num_tokens, np.int32),
        "positions": np.zeros(num_tokens, np.int32),
        "context_lens": np.ones(num_tokens, np.int32),
        "seq_index": np.zeros(num_tokens, np.int32),
        "slot_mapping": _scratch_slots(runner, num_tokens),
        "block_tables": np.full((1, runner.max_blocks_per_seq), SCRATCH_BLOCK, np.int32),
        "logits_indices": np.asarray([num_tokens - 1], np.int32),
    }
    logits = runner.logits_rows(1)
    if runner.layered is None:
        runner.dispatch(runner.prefill_id, "prefill", arrays, logits=logits, **runner.cache)
        return
    # A chunk that no sequence owns: the table above stands for it.
    chunk = PrefillChunk(-1, 0, num_tokens, (SCRATCH_BLOCK,), is_sampled=True)
    for group in runner.layered.groups:
        runner.layered.run(runner, (chunk,), group, arrays, logits)


def _timed_decode(runner: ModelRunner, size: int) -> float:
    sampling = SamplingParams(temperature=1.0, top_k=20, top_p=0.95, seed=0, logprobs=1)
    row = RunnerSequence(SequenceStart(0, (0,), (), sampling)).sampling_row()
    dispatch = runner.decode_dispatch(size)
    dispatch.pack_scratch()
    fastest = float("inf")
    for _ in range(1 + NUM_TIMED_STEPS):
        begin = time.perf_counter()
        runner.run_decode(dispatch)
        runner.sample([row] * size)
        fastest = min(fastest, time.perf_counter() - begin)
    return fastest
