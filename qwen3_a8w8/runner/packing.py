"""Turns prefill chunks into the callable's input arrays.

Pure functions from plans to numpy arrays, named and shaped like the parameters
in `model/qwen3.py`. Everything is checked before (`validation.py`); nothing here
touches device memory. What decodes and samples step by step is packed in place, in
`decode_dispatch.py` and `sampler.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qwen3_a8w8.config import SCRATCH_BLOCK
from qwen3_a8w8.engine.plan import PrefillChunk
from qwen3_a8w8.runner.sequences import RunnerSequence

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
