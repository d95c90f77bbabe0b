"""Helpers that drive a real ModelRunner in tests."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import torch

from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.plan import (
    DecodeBatch,
    DecodeRow,
    PrefillChunk,
    SequenceStart,
    StepPlan,
    StepResult,
)
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.kernels.backend import Backend
from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from qwen3_a8w8.kernels.signature import FLOAT32, INT32
from qwen3_a8w8.runner.model_runner import ModelRunner
from qwen3_a8w8.runner.packed_cache import PackedCache
from qwen3_a8w8.runner.packing import pack_prefill
from qwen3_a8w8.runner.sampler import Sampler
from qwen3_a8w8.runner.sequences import RunnerSequence
from qwen3_a8w8.runner.worker import Worker

GREEDY = SamplingParams(temperature=0, max_tokens=None)


def make_runner(path: Path, backend: Backend, **settings) -> ModelRunner:
    """A runner with a small cache on an explicit backend."""
    config = EngineConfig(**{"block_size": 16, "num_kv_blocks": 128, **settings})
    with open_checkpoint(path) as checkpoint:
        return ModelRunner(checkpoint, config, backend)


def make_sampler(size: int) -> Sampler:
    """A sampler without a callable, to look at what it packs."""
    worker = Worker("cpu")
    logits = worker.alloc((size, 512), FLOAT32)
    outputs = {"sampled_ids": worker.alloc((size, 8), INT32)}
    return Sampler(worker, 0, size, logits=logits, outputs=outputs)


def all_logits(runner: ModelRunner, token_ids: list[int]) -> torch.Tensor:
    """Logits of every position of one sequence, [num_tokens, vocab], in one prefill."""
    count = len(token_ids)
    block_size = runner.config.block_size
    blocks = tuple(range(1, 1 + -(-count // block_size)))
    start = SequenceStart(0, tuple(token_ids), (), GREEDY)
    chunk = PrefillChunk(0, 0, count, blocks, is_sampled=True)
    sequences = {0: RunnerSequence(start, vocab_size=runner.model.vocab_size)}
    arrays = pack_prefill([chunk], sequences, block_size, runner.device.max_blocks_per_seq)
    arrays["logits_indices"] = np.arange(count, dtype=np.int32)
    logits = runner.device.worker.alloc((count, runner.model.vocab_size), FLOAT32)
    runner.device.prefill(arrays, logits)
    return logits.to_continuous_tensor().clone()


def load_through_cache(path: Path, directory: Path, token_ids: list[int], barrier, results) -> None:
    """In a process of its own: waits for the others, loads, sends the logits' bytes.

    Here, because a child imports the module that its function is in.
    """
    torch.set_num_threads(1)
    config = EngineConfig(block_size=16, num_kv_blocks=17, max_model_len=256)
    barrier.wait()
    with open_checkpoint(path) as checkpoint:
        cache = PackedCache(directory, min_bytes=0)
        runner = ModelRunner(checkpoint, config, CpuBackend(num_threads=2), cache)
    results.put(all_logits(runner, token_ids).numpy().tobytes())
    runner.close()


class Sequences:
    """Runs sequences on a runner by hand-made plans, without a scheduler."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self._step_ids = itertools.count()
        self._next_block = 1
        self.blocks: dict[int, tuple[int, ...]] = {}
        self.lengths: dict[int, int] = {}

    def execute(self, **fields) -> StepResult:
        """Runs a plan with the given fields."""
        return self.runner.execute(StepPlan(step_id=next(self._step_ids), **fields))

    def start(
        self,
        seq_id: int,
        prompt: list[int],
        *,
        room: int = 64,
        sampling: SamplingParams = GREEDY,
        chunks: list[int] | None = None,
    ) -> int:
        """Starts and prefills a sequence, in chunks of the given sizes; its first token."""
        num_blocks = -(-(len(prompt) + room) // self.runner.config.block_size)
        self.blocks[seq_id] = tuple(range(self._next_block, self._next_block + num_blocks))
        self._next_block += num_blocks
        self.lengths[seq_id] = len(prompt) + 1
        begin = 0
        sizes = chunks or [len(prompt)]
        for size in sizes:
            chunk = PrefillChunk(
                seq_id, begin, size, self.blocks[seq_id], is_sampled=begin + size == len(prompt)
            )
            starts = (SequenceStart(seq_id, tuple(prompt), (), sampling),) if begin == 0 else ()
            result = self.execute(start=starts, prefill=(chunk,))
            begin += size
        return result.sampled[0].token_id

    def decode(self, seq_ids: list[int], batch_size: int) -> list[int]:
        """One decode step of the given sequences; their new tokens."""
        rows = tuple(
            DecodeRow(seq_id, self.lengths[seq_id] - 1, self.blocks[seq_id]) for seq_id in seq_ids
        )
        result = self.execute(decode=DecodeBatch(batch_size, rows))
        for seq_id in seq_ids:
            self.lengths[seq_id] += 1
        return [token.token_id for token in result.sampled]
