"""The first dispatches: every decode size and a prefill chunk, inside the scratch block.

They measure the decode step of each batch size for the scheduler's choice between a
partial B16 and single steps, and make scratch arenas grow before the KV cache is
sized. A large model takes seconds for a full prefill chunk, which would delay the
start: a small one is used then, and the remaining growth of the arenas is reported, so
that sizing leaves that memory free.

All tokens are equal and at position 0, so tokens that share a slot of the scratch block write the
same bytes. A backend with memory of its own gets a cache for a whole chunk and a prompt's positions
instead, and one decode at a long context: its ops allocate workspaces by what they are given.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qwen3_a8w8.config import SCRATCH_BLOCK, EngineConfig
from qwen3_a8w8.engine.plan import PrefillChunk, SequenceStart
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.runner.carried_ids import Stage
from qwen3_a8w8.runner.packing import Arrays
from qwen3_a8w8.runner.sequences import RunnerSequence

if TYPE_CHECKING:
    from qwen3_a8w8.runner.device_model import DeviceModel

MAX_PREFILL_TOKENS = 64
"""Tokens of the first prefill chunk; a large model takes about as long as for two decode steps."""

MAX_STEPS = 4
"""Most decode steps of a size; the fastest counts."""

ENOUGH_S = 1.0
"""Seconds of decode steps of a size after which no more are run, and most estimated seconds for
a full prefill chunk to be run."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Measurements of the first dispatches.

    Attributes:
        prefill_token_s: seconds per token of the largest prefill chunk, or of a small one, whose
            tokens take longer.
        decode_step_s: seconds of a decode step with its sampling, by batch size.
        arena_growth_bytes: scratch memory that the largest prefill chunk needs beyond the current
            arenas.
    """

    prefill_token_s: float
    decode_step_s: dict[int, float]
    arena_growth_bytes: int


def warm_up(device: DeviceModel) -> WarmUp:
    """Runs a small prefill chunk, a full one if that is fast, and every decode size.

    Args:
        device: compiled, with a cache of at least the scratch block; nothing has run on it yet.
    """
    largest = device.config.prefill_chunk_tokens
    num_tokens = min(MAX_PREFILL_TOKENS, largest)
    if device.workspace_tokens:
        # The device's allocator keeps what the largest dispatches need.
        _prefill(device, largest)
        _decode_at_length(device)
    start = time.perf_counter()
    _prefill(device, num_tokens)
    token_s = (time.perf_counter() - start) / num_tokens
    # All scratch memory of a chunk is per token, so it grows linearly.
    growth = device.worker.arena_bytes * (largest - num_tokens) // num_tokens
    if growth > 0 and token_s * largest <= ENOUGH_S:
        start = time.perf_counter()
        _prefill(device, largest)
        token_s, growth = (time.perf_counter() - start) / largest, 0
    sizes = sorted(device.config.decode_batch_sizes)
    return WarmUp(token_s, {size: _timed_decode(device, size) for size in sizes}, growth)


def warm_up_blocks(config: EngineConfig) -> int:
    """Blocks that give each token of a prefill chunk a slot of its own, as some devices need."""
    return -(-config.prefill_chunk_tokens // config.block_size)


def _slots(device: DeviceModel, count: int) -> np.ndarray:
    """Slots of tokens: distinct ones in a device's cache for that; else scratch slots."""
    block_size = device.config.block_size
    blocks = device.cache["k_cache"].shape[1] if device.workspace_tokens else 1
    return (SCRATCH_BLOCK * block_size + np.arange(count) % (blocks * block_size)).astype(np.int32)


def _decode_at_length(device: DeviceModel) -> None:
    """The largest batch at the longest context that counts; what it reads is the scratch block."""
    size = max(device.config.decode_batch_sizes)
    dispatch = device.decode_dispatch(size)
    longest = device.max_blocks_per_seq * device.config.block_size
    dispatch.pack_scratch(min(device.workspace_tokens, longest))
    device.run_decode(dispatch)


def _prefill(device: DeviceModel, num_tokens: int) -> None:
    block_size = device.config.block_size
    blocks: tuple[int, ...] = (SCRATCH_BLOCK,)
    positions = np.zeros(num_tokens, np.int32)
    if device.workspace_tokens and num_tokens <= (device.max_blocks_per_seq - 1) * block_size:
        blocks = tuple(range(-(-num_tokens // block_size)))
        positions = np.arange(num_tokens, dtype=np.int32)
    table = np.full((1, device.max_blocks_per_seq), SCRATCH_BLOCK, np.int32)
    table[0, : len(blocks)] = blocks
    arrays: Arrays = {
        "token_ids": np.zeros(num_tokens, np.int32),
        "positions": positions,
        "context_lens": positions + 1,
        "seq_index": np.zeros(num_tokens, np.int32),
        "slot_mapping": _slots(device, num_tokens),
        "block_tables": table,
        "logits_indices": np.asarray([num_tokens - 1], np.int32),
    }
    logits = device.logits_rows(1)
    if device.layered is None:
        device.prefill(arrays, logits)
        return
    # A chunk without a sequence: the block table above is its own.
    chunk = PrefillChunk(-1, 0, num_tokens, blocks, is_sampled=True)
    for group in device.layered.groups:
        device.prefill_layers((chunk,), group, arrays, logits)


def _timed_decode(device: DeviceModel, size: int) -> float:
    sampling = SamplingParams(temperature=1.0, top_k=20, top_p=0.95, seed=0, logprobs=1)
    row = RunnerSequence(
        SequenceStart(0, (0,), (), sampling), vocab_size=device.model.vocab_size
    ).sampling_row()
    dispatch = device.decode_dispatch(size)
    dispatch.pack_scratch()
    steps_s: list[float] = []
    for _ in range(MAX_STEPS):
        start = time.perf_counter()
        device.run_decode(dispatch)
        device.sample([row] * size, Stage.DECODE)
        steps_s.append(time.perf_counter() - start)
        if sum(steps_s) >= ENOUGH_S:
            break
    return min(steps_s)
