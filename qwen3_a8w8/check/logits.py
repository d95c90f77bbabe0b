"""Logits of a runner for whole sequences, one prefill each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from qwen3_a8w8.kernels.signature import FLOAT32
from qwen3_a8w8.runner.model_runner import ModelRunner
from qwen3_a8w8.runner.packing import slots_of


def sequence_logits(runner: ModelRunner, token_ids: Sequence[int]) -> torch.Tensor:
    """Logits of every position of one sequence.

    Args:
        runner: idle; its cache blocks from block 1 are overwritten.
        token_ids: no longer than the cache and the model's context.

    Returns:
        `[num_tokens, vocab]` float32.
    """
    device, block_size = runner.device, runner.config.block_size
    count = len(token_ids)
    blocks = list(range(1, 1 + -(-count // block_size)))
    positions = np.arange(count, dtype=np.int32)
    tables = np.zeros((1, device.max_blocks_per_seq), np.int32)
    tables[0, : len(blocks)] = blocks
    arrays = {
        "token_ids": np.asarray(token_ids, np.int32),
        "positions": positions,
        "context_lens": positions + np.int32(1),
        "seq_index": np.zeros(count, np.int32),
        "slot_mapping": slots_of(blocks, 0, count, block_size),
        "block_tables": tables,
        "logits_indices": positions,
    }
    logits = device.worker.alloc((count, runner.model.vocab_size), FLOAT32)
    try:
        device.prefill(arrays, logits)
        return logits.to_continuous_tensor().cpu().clone()
    finally:
        device.worker.free(logits)
