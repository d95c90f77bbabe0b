"""Turns chunks, rows and sampling settings into the callables' input arrays.

Pure functions from plans to numpy arrays, named and shaped like the parameters
in `model/qwen3.py`. Everything is checked before (`validation.py`); nothing here
touches device memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qwen3_a8w8.config import SCRATCH_BLOCK, TOKENS_PER_ROW
from qwen3_a8w8.engine.plan import DecodeBatch, PrefillChunk
from qwen3_a8w8.runner.sequences import RunnerSequence, SamplingRow

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


def pack_decode(
    batch: DecodeBatch,
    sequences: Mapping[int, RunnerSequence],
    block_size: int,
    max_blocks: int,
    num_rows: int,
) -> Arrays:
    """Packs a decode batch: live rows first, idle rows at distinct scratch slots.

    Args:
        batch: its rows are the live ones, and their drafts rows after them.
        sequences: live sequences by id.
        block_size: tokens per block; at least the batch size.
        max_blocks: width of the block tables.
        num_rows: rows of the arrays: the batch size, or 8 in a batch of 1 that takes drafts.

    Returns:
        token_ids [B, 8] int32, num_active [1] int32, positions, seq_lens, slot_mapping
        [num_rows] int32, block_tables [num_rows, max_blocks] int32.
    """
    token_ids = np.zeros((batch.batch_size, TOKENS_PER_ROW), np.int32)
    positions = np.zeros(num_rows, np.int32)
    seq_lens = np.zeros(num_rows, np.int32)
    slot_mapping = SCRATCH_BLOCK * block_size + np.arange(num_rows, dtype=np.int32)
    # Lists first: setting one element of an array costs more than a whole step of a loop.
    places: list[int] = []
    slots: list[int] = []
    tables: list[Sequence[int]] = []
    for index, row in enumerate(batch.rows):
        drafts = row.draft_token_ids
        token_ids[index, 0] = sequences[row.seq_id].token_ids[row.position]
        if drafts:
            token_ids[index, 1 : 1 + len(drafts)] = drafts
        for position in range(row.position, row.position + 1 + len(drafts)):
            places.append(position)
            block_id = row.block_ids[position // block_size]
            slots.append(block_id * block_size + position % block_size)
            tables.append(row.block_ids)
    positions[: len(places)] = places
    seq_lens[: len(places)] = positions[: len(places)] + 1
    slot_mapping[: len(places)] = slots
    return {
        "token_ids": token_ids,
        "num_active": np.asarray([len(tables)], np.int32),
        "positions": positions,
        "seq_lens": seq_lens,
        "slot_mapping": slot_mapping,
        "block_tables": _block_tables(tables, num_rows, max_blocks),
    }


def pack_sampling(rows: Sequence[SamplingRow], batch_size: int) -> Arrays:
    """Packs the sampler's controls; see `Ops.sample`.

    Args:
        rows: in the order of the logits.
        batch_size: rows of the arrays; the rest is idle.

    Returns:
        The arrays of `SAMPLE_CONTROLS`, and num_active.
    """
    arrays: Arrays = {
        name: np.zeros(batch_size, dtype)
        for name, dtype in (
            ("temperature", np.float32),
            ("top_k", np.int32),
            ("top_p", np.float32),
            ("min_p", np.float32),
            ("seeds", np.int64),
            ("positions", np.int32),
            ("repetition_penalty", np.float32),
            ("presence_penalty", np.float32),
            ("frequency_penalty", np.float32),
            ("num_logprobs", np.int32),
        )
    }
    bias_range = np.zeros((batch_size, 2), np.int32)
    history_range = np.zeros((batch_size, 2), np.int32)
    bias_ids: list[int] = []
    bias_values: list[float] = []
    history_ids: list[int] = []
    history_counts: list[int] = []
    allowed_start = np.full(batch_size, -1, np.int32)
    allowed_words: list[NDArray[np.int32]] = []
    for index, row in enumerate(rows):
        sampling = row.sampling
        for name in (
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        ):
            arrays[name][index] = getattr(sampling, name)
        arrays["seeds"][index] = 0 if sampling.seed is None else sampling.seed
        arrays["positions"][index] = row.position
        arrays["num_logprobs"][index] = -1 if sampling.logprobs is None else sampling.logprobs
        biases, history = row.biases, row.history
        bias_range[index] = len(bias_ids), len(bias_ids) + len(biases)
        bias_ids.extend(biases)
        bias_values.extend(biases.values())
        history_range[index] = len(history_ids), len(history_ids) + len(history)
        history_ids.extend(history)
        history_counts.extend(history.values())
        if row.allowed is not None:
            allowed_start[index] = sum(words.size for words in allowed_words)
            allowed_words.append(row.allowed)
    arrays["bias_range"] = bias_range
    arrays["bias_ids"] = np.asarray(bias_ids, np.int32)
    arrays["bias_values"] = np.asarray(bias_values, np.float32)
    arrays["history_range"] = history_range
    arrays["history_ids"] = np.asarray(history_ids, np.int32)
    arrays["history_counts"] = np.asarray(history_counts, np.int32)
    arrays["allowed_start"] = allowed_start
    arrays["allowed_words"] = np.concatenate([np.empty(0, np.int32), *allowed_words])
    arrays["num_active"] = np.asarray([len(rows)], np.int32)
    return arrays


def _block_tables(
    tables: Sequence[Sequence[int]], num_rows: int, max_blocks: int
) -> NDArray[np.int32]:
    packed = np.full((num_rows, max_blocks), SCRATCH_BLOCK, np.int32)
    for row, table in enumerate(tables):
        packed[row, : len(table)] = table
    return packed
