"""A model on a device: its callables, its memory, and one method per kind of dispatch.

Owns weights, KV cache, logits and the inputs and outputs of every dispatch, through its
worker, and the clock that measures the device's computing time. Doesn't know about sequences
or plans: `model_runner.py` decides what is dispatched and validates it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qwen3_a8w8.checkpoint.checkpoint import Checkpoint
from qwen3_a8w8.config import MAX_LOGPROBS, TOKENS_PER_ROW, EngineConfig
from qwen3_a8w8.engine.plan import PrefillChunk
from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.experimental import PROMPT_LOOKUP
from qwen3_a8w8.kernels.backend import Backend, Compiler, DeviceBackend
from qwen3_a8w8.kernels.signature import BFLOAT16, FLOAT32, INT8, INT32, DType
from qwen3_a8w8.model import qwen3
from qwen3_a8w8.runner.carried_ids import CarriedIds, Stage
from qwen3_a8w8.runner.layered_prefill import LayeredPrefill, LayerGroup
from qwen3_a8w8.runner.model_loader import load_model
from qwen3_a8w8.runner.packed_cache import PackedCache
from qwen3_a8w8.runner.packing import Arrays, DecodeDispatch
from qwen3_a8w8.runner.sampler import Sampler, Samples
from qwen3_a8w8.runner.sequences import SamplingRow
from qwen3_a8w8.runner.worker import Worker, WorkerTensor


class DeviceClock:
    """Sums dispatch times; a step's idle time starts at the last dispatch of the previous step."""

    def __init__(self) -> None:
        self._busy_s = 0.0
        self._last_end_s: float | None = None
        self._step_end_s: float | None = None

    def add(self, start_s: float, end_s: float) -> None:
        """Adds one dispatch."""
        self._busy_s += end_s - start_s
        self._last_end_s = end_s

    def end_step(self) -> tuple[float, float]:
        """Closes a step.

        Returns:
            Seconds that the device computed in it, and seconds that it was idle before its last
            dispatch ended; both 0.0 for a step without a dispatch.
        """
        busy_s, last_end_s = self._busy_s, self._last_end_s
        if last_end_s is None or busy_s == 0.0:
            return 0.0, 0.0
        idle_s = 0.0 if self._step_end_s is None else last_end_s - self._step_end_s - busy_s
        self._step_end_s = last_end_s
        self._busy_s = 0.0
        return busy_s, max(idle_s, 0.0)


MAX_PREFILL_SEQS = 16
"""Most chunks in one prefill dispatch; each may need a row of the sampler."""

_DTYPES = {"int32": INT32, "int64": DType.INT64, "float32": FLOAT32}


class DeviceModel:
    """The dispatches of one model, with their memory and callables.

    Attributes:
        model: the architecture.
        config: the engine's options.
        weights_fingerprint: of the checkpoint.
        max_blocks_per_seq: width of the block tables.
        max_draft_tokens: most draft tokens of the row in a batch of 1; 0: none are accepted.
        workspace_tokens: see `DeviceBackend`; 0 for a backend that computes in host memory.
        worker: owns the memory and the callables.
        cache: the KV cache as arguments of callables, by name; empty before `alloc_cache`.
        clock: sums all dispatches.
        carried: sequences whose newest ids are in `sampled_ids`; the runner keeps it.
        sampled_ids: [2 * rows, 8] int32, after prefill and after decode; see `CarriedIds`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        max_model_len: int,
        backend: Backend,
        packed_cache: PackedCache | None,
    ) -> None:
        """Compiles and loads; allocates memory for everything but the KV cache.

        Args:
            checkpoint: open; not needed afterwards.
            config: the engine's options.
            max_model_len: longest sequence in tokens.
            backend: kernels; owned by this object.
            packed_cache: where packed weights are stored between runs; None: nowhere.

        Raises:
            CheckpointError: a tensor can't be read.
            ConfigError: the packed cache can't be used.
        """
        self.model = checkpoint.config
        self.weights_fingerprint = checkpoint.fingerprint
        self.config = config
        self.max_blocks_per_seq = -(-max_model_len // config.block_size)
        self.max_draft_tokens = TOKENS_PER_ROW - 1 if PROMPT_LOOKUP in config.enable else 0
        self.workspace_tokens = (
            backend.workspace_tokens if isinstance(backend, DeviceBackend) else 0
        )
        self.worker = Worker(backend.device, is_host_memory=not isinstance(backend, DeviceBackend))
        self.cache: dict[str, WorkerTensor] = {}
        self.clock = DeviceClock()
        self._compiler = Compiler(backend)
        self._inputs: dict[tuple[str, str], WorkerTensor] = {}
        self._decodes: dict[int, DecodeDispatch] = {}
        self._samplers: dict[tuple[Stage, int], Sampler] = {}
        self.carried = CarriedIds(max(MAX_PREFILL_SEQS, *config.decode_batch_sizes))
        try:
            self._loaded = load_model(
                checkpoint, config, max_model_len, self._compiler, self.worker, packed_cache
            )
            self._alloc_outputs()
        except BaseException:
            self.close()
            raise

    @property
    def packed_memory(self) -> NDArray[np.uint8] | None:
        """The packed file of the weights, in memory; None: there is no file."""
        return self._loaded.packed_memory

    @property
    def mapped_bytes(self) -> int:
        """Bytes of weights in the page cache, which the kernel counts as free memory."""
        return self._loaded.mapped_bytes

    @property
    def layered(self) -> LayeredPrefill | None:
        """Prefill in groups of layers, if configured."""
        return self._loaded.layered

    def alloc_cache(self, num_blocks: int) -> None:
        """Allocates a KV cache of that many blocks and frees the previous one.

        A cache with a configured size commits its memory at once; one sized by a share of the
        free memory commits it as blocks are used.

        Raises:
            ConfigError: there isn't enough memory.
        """
        for tensor in self.cache.values():
            self.worker.free(tensor)
        model, is_bf16 = self.model, self.config.has_bf16_kv_cache
        heads = (model.num_layers, num_blocks, model.num_kv_heads)
        values = (*heads, self.config.block_size, model.head_dim)
        scales = (*heads, 0 if is_bf16 else self.config.block_size)
        dtype = BFLOAT16 if is_bf16 else INT8
        is_taken = self.config.num_kv_blocks is not None or self.config.kv_cache_bytes is not None
        try:
            self.cache = {
                "k_cache": self.worker.alloc(values, dtype, is_taken=is_taken),
                "v_cache": self.worker.alloc(values, dtype, is_taken=is_taken),
                "k_scale": self.worker.alloc(scales, FLOAT32),
                "v_scale": self.worker.alloc(scales, FLOAT32),
            }
        except MemoryError as error:
            raise ConfigError(
                f"a KV cache of {num_blocks} blocks: {error}; lower num_kv_blocks or kv_cache_bytes"
            ) from error
        for dispatch in self._decodes.values():
            dispatch.free()
        self._decodes = {size: self._make_decode(size) for size in self.config.decode_batch_sizes}

    def logits_rows(self, num_rows: int) -> WorkerTensor:
        """The first rows of the logits buffer, [num_rows, vocab] float32."""
        return self._logits.view(num_rows, self.model.vocab_size)

    def prefill(self, arrays: Arrays, logits: WorkerTensor) -> None:
        """Computes chunks through all layers.

        Args:
            arrays: inputs by parameter name; see `packing.pack_prefill`.
            logits: written, [num_logits, vocab] float32.
        """
        self.dispatch(self._loaded.prefill_id, "prefill", arrays, logits=logits, **self.cache)

    def prefill_layers(
        self,
        chunks: Sequence[PrefillChunk],
        layers: LayerGroup,
        arrays: Arrays,
        logits: WorkerTensor,
    ) -> None:
        """Computes chunks through one group of layers; see `LayeredPrefill.run`."""
        assert self.layered is not None  # plans have layers only if the device has groups
        self.layered.run(self.dispatch, self.cache, chunks, layers, arrays, logits)

    def decode_dispatch(self, batch_size: int) -> DecodeDispatch:
        """The decode dispatches of a compiled batch size."""
        return self._decodes[batch_size]

    def run_decode(self, dispatch: DecodeDispatch) -> None:
        """Runs a packed decode dispatch."""
        dispatch.upload()
        start_s = time.perf_counter()
        dispatch.run()
        self.clock.add(start_s, time.perf_counter())

    def sample(self, rows: Sequence[SamplingRow], stage: Stage) -> Samples:
        """Samples from the first `len(rows)` rows of the logits.

        Args:
            rows: what each is sampled by.
            stage: what has computed the logits; its earlier ids are overwritten.
        """
        size = next(s for s in qwen3.BATCH.choices if s >= len(rows))
        sampler = self._samplers[stage, size]
        self.carried.overwrite(stage)
        sampler.pack(rows)
        sampler.upload()
        start_s = time.perf_counter()
        sampler.run()
        self.clock.add(start_s, time.perf_counter())
        return sampler.samples()

    def dispatch(
        self, callable_id: int, name: str, arrays: Arrays, **outputs: WorkerTensor
    ) -> None:
        """Uploads inputs and runs one callable.

        Args:
            callable_id: the worker's.
            name: prefix under which input memory is reused by the next call.
            arrays: inputs by parameter name.
            outputs: further arguments by parameter name.
        """
        args = {key: self._upload(name, key, values) for key, values in arrays.items()}
        start_s = time.perf_counter()
        self.worker.run(callable_id, {**args, **outputs}, arrays)
        self.clock.add(start_s, time.perf_counter())

    def close(self) -> None:
        """Frees memory, callables and the backend's threads. Idempotent."""
        self._inputs.clear()
        self._decodes.clear()
        self._samplers.clear()
        self.cache.clear()
        self.worker.close()
        self._compiler.close()

    def _alloc_outputs(self) -> None:
        rows = self.carried.num_rows
        self._logits = self.worker.alloc((rows, self.model.vocab_size), FLOAT32)
        self.sampled_ids = self.worker.alloc((len(Stage) * rows, TOKENS_PER_ROW), INT32)
        self._logprobs = {
            "logprobs": self.worker.alloc((rows,), FLOAT32),
            "top_ids": self.worker.alloc((rows, MAX_LOGPROBS), INT32),
            "top_logprobs": self.worker.alloc((rows, MAX_LOGPROBS), FLOAT32),
        }
        self._samplers = {
            (stage, size): self._make_sampler(stage, size)
            for stage in Stage
            for size in qwen3.BATCH.choices
        }

    def _make_sampler(self, stage: Stage, size: int) -> Sampler:
        first = self.carried.first_row(stage) * TOKENS_PER_ROW
        outputs = {
            "sampled_ids": self.sampled_ids.view(size, TOKENS_PER_ROW, offset=first),
            **{n: tensor.view(size, *tensor.shape[1:]) for n, tensor in self._logprobs.items()},
        }
        logits = self.logits_rows(size)
        return Sampler(self.worker, self._loaded.sample_id, size, logits=logits, outputs=outputs)

    def _make_decode(self, batch_size: int) -> DecodeDispatch:
        # With draft tokens a batch of 1 has one row per column.
        has_drafts = batch_size == 1 and self.max_draft_tokens > 0
        num_rows = TOKENS_PER_ROW if has_drafts else batch_size
        return DecodeDispatch(
            self.worker,
            self._loaded.decode_id,
            batch_size=batch_size,
            num_rows=num_rows,
            block_size=self.config.block_size,
            max_blocks=self.max_blocks_per_seq,
            tensors={**self.cache, "logits": self.logits_rows(num_rows)},
            # In the host's own memory there is no way to save.
            sampled=None if self.worker.is_host_memory else self.sampled_ids,
        )

    def _upload(self, name: str, key: str, values: NDArray[np.generic]) -> WorkerTensor:
        memory = self._inputs.get((name, key))
        if memory is None or memory.num_elements < values.size:
            if memory is not None:
                self.worker.free(memory)
            # Twice the needed size, so that slowly growing inputs don't allocate in every step.
            memory = self.worker.alloc((2 * values.size,), _DTYPES[values.dtype.name])
            self._inputs[name, key] = memory
        self.worker.upload(memory, values)
        return memory.view(*values.shape)
