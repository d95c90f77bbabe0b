"""Executes step plans: prefill, decode and sample on one device.

The runner owns weights, KV cache and compiled callables through its worker, and
remembers each live sequence's ids. It decides nothing: who runs, where blocks
lie and when a sequence ends is the scheduler's business (`engine/`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qwen3_a8w8.checkpoint.checkpoint import Checkpoint, open_checkpoint
from qwen3_a8w8.checkpoint.resolve import resolve_model
from qwen3_a8w8.config import MAX_LOGPROBS, TOKENS_PER_ROW, EngineConfig
from qwen3_a8w8.engine.plan import (
    DecodeRow,
    PrefillChunk,
    PromptToken,
    RunnerCapabilities,
    SampledToken,
    StepPlan,
    StepResult,
)
from qwen3_a8w8.experimental import FLAGS, PROMPT_LOOKUP, SKIP_SELF_CHECK
from qwen3_a8w8.kernels.backend import Backend, CompiledCallable, Compiler
from qwen3_a8w8.kernels.select import select_backend
from qwen3_a8w8.kernels.signature import BFLOAT16, FLOAT32, INT8, INT32, DType
from qwen3_a8w8.model import qwen3
from qwen3_a8w8.model.linears import float_options
from qwen3_a8w8.model.weights import TABLE_NAMES, make_tables
from qwen3_a8w8.runner.decode_dispatch import DecodeDispatch
from qwen3_a8w8.runner.device_clock import DeviceClock
from qwen3_a8w8.runner.layered_prefill import LayeredPrefill, layer_groups
from qwen3_a8w8.runner.packed_cache import PackedCache, load_packed
from qwen3_a8w8.runner.packing import Arrays, pack_prefill
from qwen3_a8w8.runner.sampler import Sampler
from qwen3_a8w8.runner.samples import Samples, look_up, take, wanted_after
from qwen3_a8w8.runner.self_check import self_check
from qwen3_a8w8.runner.sequences import RunnerSequence, SamplingRow
from qwen3_a8w8.runner.sizing import (
    check_sequence_fits,
    free_host_memory_bytes,
    max_model_len,
    num_kv_blocks,
)
from qwen3_a8w8.runner.validation import validate_plan
from qwen3_a8w8.runner.warm_up import warm_up
from qwen3_a8w8.runner.worker import Worker
from qwen3_a8w8.runner.worker_tensor import WorkerTensor
from qwen3_a8w8.text.grammar_compiler import GrammarCompiler
from qwen3_a8w8.text.structured import StructuredOutput

MAX_PREFILL_SEQS = 16
"""Most chunks in one prefill dispatch; each may need a row of the sampler."""

_DTYPES = {"int32": INT32, "int64": DType.INT64, "float32": FLOAT32}


class ModelRunner:
    """One model on one device; implements `engine.plan.Runner`.

    Args:
        checkpoint: open checkpoint; read during construction, not needed afterwards.
        config: how to run it.
        backend: kernels; owned by the runner from now on.
        packed_cache: where packed weights are kept between runs; None: nowhere.

    Raises:
        ConfigError: max_model_len or the KV cache doesn't fit, or the packed cache can't be used.
        CheckpointError: a tensor can't be read.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        backend: Backend,
        packed_cache: PackedCache | None = None,
    ) -> None:
        self.model = checkpoint.config
        self.config = config
        self.max_model_len = max_model_len(self.model, config)
        self.max_blocks_per_seq = -(-self.max_model_len // config.block_size)
        self.worker = Worker(backend.device)
        self.cache: dict[str, WorkerTensor] = {}
        self.layered: LayeredPrefill | None = None
        self._max_draft_tokens = TOKENS_PER_ROW - 1 if PROMPT_LOOKUP in config.enable else 0
        self._clock = DeviceClock()
        self._compiler = Compiler(backend)
        self._packed_cache = packed_cache
        self._sequences: dict[int, RunnerSequence] = {}
        self._grammars = GrammarCompiler(
            checkpoint.directory,
            vocab_size=self.model.vocab_size,
            eos_token_ids=self.model.eos_token_ids,
        )
        self._inputs: dict[tuple[str, str], WorkerTensor] = {}
        self._decodes: dict[int, DecodeDispatch] = {}
        self._samplers: dict[int, Sampler] = {}
        try:
            self._compile_and_load(checkpoint, backend)
            self._size_and_warm_up(backend)
        except BaseException:
            self.close()
            raise

    @classmethod
    def load(cls, model: str, config: EngineConfig) -> ModelRunner:
        """Resolves and opens a model and makes its runner.

        Args:
            model: directory, "demo" or hub id.
            config: how to run it.

        Raises:
            CheckpointError: the model can't be found or read.
            KernelUnavailableError: the device can't run here, or gives wrong results.
            ConfigError: see the class.
        """
        with open_checkpoint(resolve_model(model)) as checkpoint:
            backend = select_backend(config.device, config.num_threads)
            if SKIP_SELF_CHECK not in config.enable:
                self_check(backend, config.active_flags)
            packed_cache = PackedCache.from_setting(config.packed_cache_dir)
            return cls(checkpoint, config, backend, packed_cache)

    @property
    def capabilities(self) -> RunnerCapabilities:
        """What this runner can do, measured step times included."""
        return self._capabilities

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step.

        Raises:
            UnsupportedBatchSizeError: the decode batch has a size that isn't compiled.
            InvalidRequestError: the plan doesn't fit; nothing of it was carried out.
            EngineDeadError: the model gave logits that aren't finite.
        """
        validate_plan(plan, self._sequences, self._capabilities, self.layered)
        for seq_id in plan.release:
            self._sequences.pop(seq_id, None)
        for start in plan.start:
            structured = start.sampling.structured
            grammar = None if structured is None else self._grammars.start(structured)
            self._sequences[start.seq_id] = RunnerSequence(start, grammar)
        begin_s = time.perf_counter()
        sampled, prompt_tokens = self._prefill(plan)
        prefill_time_s = time.perf_counter() - begin_s if plan.prefill else 0.0
        sampled += self._decode(plan)
        device_time_s, idle_s = self._clock.end_step()
        return StepResult(
            plan.step_id,
            tuple(sampled),
            device_time_s,
            prefill_time_s,
            idle_s,
            tuple(prompt_tokens),
        )

    def prepare_grammar(self, structured: StructuredOutput) -> None:
        """Compiles the form of a request that is about to be admitted; waits for it.

        Raises:
            InvalidRequestError: the form can't be used; `param` names its field.
        """
        self._grammars.prepare(structured)

    def close(self) -> None:
        """Frees device memory, threads and sequences. Idempotent."""
        self._grammars.close()
        self._sequences.clear()
        self._inputs.clear()
        self._decodes.clear()
        self._samplers.clear()
        self.cache.clear()
        self.worker.close()
        self._compiler.close()

    def dispatch(
        self, callable_id: int, name: str, arrays: Arrays, **outputs: WorkerTensor
    ) -> None:
        """Uploads inputs and runs one callable on the cache.

        Args:
            callable_id: of prefill, decode or sample.
            name: prefix under which input memory is kept for the next call.
            arrays: inputs by parameter name.
            outputs: further arguments by parameter name.
        """
        args = {key: self._upload(name, key, values) for key, values in arrays.items()}
        begin_s = time.perf_counter()
        self.worker.run(callable_id, {**args, **outputs})
        self._clock.add(begin_s, time.perf_counter())

    def decode_dispatch(self, batch_size: int) -> DecodeDispatch:
        """The decode dispatches of a compiled batch size."""
        return self._decodes[batch_size]

    def run_decode(self, dispatch: DecodeDispatch) -> None:
        """Decodes what was packed."""
        dispatch.upload()
        begin_s = time.perf_counter()
        dispatch.run()
        self._clock.add(begin_s, time.perf_counter())

    def sample(self, rows: Sequence[SamplingRow]) -> Samples:
        """Samples from the first rows of the logits, as many as are given."""
        size = next(s for s in qwen3.BATCH.choices if s >= len(rows))
        sampler = self._samplers[size]
        sampler.pack(rows)
        sampler.upload()
        begin_s = time.perf_counter()
        sampler.run()
        self._clock.add(begin_s, time.perf_counter())
        return sampler.samples()

    def logits_rows(self, num_rows: int) -> WorkerTensor:
        """The first rows of the logits buffer, [num_rows, vocab] float32."""
        return self._logits.view(num_rows, self.model.vocab_size)

    def _compile_and_load(self, checkpoint: Checkpoint, backend: Backend) -> None:
        dims = {
            **self.model.static_dims(),
            **qwen3.kv_cache_dims(self.config.block_size, is_bf16=self.config.has_bf16_kv_cache),
            "MAX_POSITIONS": self.max_model_len,
        }
        options = {
            "rms_norm_eps": self.model.rms_norm_eps,
            **float_options(checkpoint.float_linears),
            **{flag: 1 for flag in self.config.active_flags if FLAGS[flag].changes == "output"},
        }
        compiled: list[CompiledCallable] = [
            self._compiler.compile(fn, dims, options)
            for fn in (qwen3.prefill, qwen3.decode, qwen3.sample)
        ]
        registered = list(compiled)
        layers_per_dispatch = self.config.prefill_layers_per_dispatch
        if layers_per_dispatch is not None and layers_per_dispatch < self.model.num_layers:
            groups = layer_groups(self.model.num_layers, layers_per_dispatch)
            self.layered = LayeredPrefill(self._compiler, dims, options, groups)
            compiled += self.layered.callables
        refs = {name: ref for fn in compiled for name, ref in fn.constants.items()}
        weight_refs = {name: ref for name, ref in refs.items() if name not in TABLE_NAMES}
        weights = load_packed(checkpoint, weight_refs, backend, self._packed_cache)
        self._mapped_bytes = weights.mapped_bytes
        constants = weights.constants | make_tables(self.model, refs, backend.pack)
        for fn in compiled:
            fn.bind(constants)
        self.prefill_id, self.decode_id, self.sample_id = map(self.worker.register, registered)
        if self.layered is not None:
            self.layered.register(self.worker, self.config.prefill_chunk_tokens)

    def _size_and_warm_up(self, backend: Backend) -> None:
        rows = max(MAX_PREFILL_SEQS, *self.config.decode_batch_sizes)
        self._logits = self.worker.alloc((rows, self.model.vocab_size), FLOAT32)
        self._sampled = {
            "sampled_ids": self.worker.alloc((rows, TOKENS_PER_ROW), INT32),
            "logprobs": self.worker.alloc((rows,), FLOAT32),
            "top_ids": self.worker.alloc((rows, MAX_LOGPROBS), INT32),
            "top_logprobs": self.worker.alloc((rows, MAX_LOGPROBS), FLOAT32),
        }
        self._samplers = {size: self._make_sampler(size) for size in qwen3.BATCH.choices}
        # Scratch arenas and thread stacks take their memory now, not when requests are live;
        # what is free afterwards, but for what arenas will still take, the cache may have.
        self._alloc_cache(1)
        warm = warm_up(self)
        self._clock.end_step()
        # The kernel calls mapped weights free, as it could read them again from the file.
        taken = self._mapped_bytes + warm.arena_growth_bytes
        free_bytes = max(0, free_host_memory_bytes() - taken)
        blocks = num_kv_blocks(self.config, self.model, self.max_model_len, free_bytes)
        check_sequence_fits(self.config, self.max_model_len, blocks)
        self._alloc_cache(blocks)
        flags = self.config.active_flags
        self._capabilities = RunnerCapabilities(
            decode_batch_sizes=tuple(sorted(self.config.decode_batch_sizes)),
            prefill_chunk_tokens=self.config.prefill_chunk_tokens,
            max_prefill_seqs=MAX_PREFILL_SEQS,
            block_size=self.config.block_size,
            num_kv_blocks=blocks,
            max_model_len=self.max_model_len,
            vocab_size=self.model.vocab_size,
            eos_token_ids=self.model.eos_token_ids,
            decode_step_s=warm.decode_step_s,
            description={
                **backend.describe(),
                **({"flags": ", ".join(flags)} if flags else {}),
            },
            num_layers=self.model.num_layers,
            prefill_token_s=warm.prefill_token_s,
            max_draft_tokens=self._max_draft_tokens,
        )

    def _alloc_cache(self, num_blocks: int) -> None:
        for tensor in self.cache.values():
            self.worker.free(tensor)
        model, is_bf16 = self.model, self.config.has_bf16_kv_cache
        heads = (model.num_layers, num_blocks, model.num_kv_heads)
        values = (*heads, self.config.block_size, model.head_dim)
        scales = (*heads, 0 if is_bf16 else self.config.block_size)
        dtype = BFLOAT16 if is_bf16 else INT8
        self.cache = {
            "k_cache": self.worker.alloc(values, dtype),
            "v_cache": self.worker.alloc(values, dtype),
            "k_scale": self.worker.alloc(scales, FLOAT32),
            "v_scale": self.worker.alloc(scales, FLOAT32),
        }
        for dispatch in self._decodes.values():
            dispatch.free()
        self._decodes = {size: self._make_decode(size) for size in self.config.decode_batch_sizes}

    def _make_decode(self, batch_size: int) -> DecodeDispatch:
        # With drafts a batch of 1 has one row per column.
        has_drafts = batch_size == 1 and self._max_draft_tokens > 0
        num_rows = TOKENS_PER_ROW if has_drafts else batch_size
        return DecodeDispatch(
            self.worker,
            self.decode_id,
            batch_size=batch_size,
            num_rows=num_rows,
            block_size=self.config.block_size,
            max_blocks=self.max_blocks_per_seq,
            tensors={**self.cache, "logits": self.logits_rows(num_rows)},
        )

    def _make_sampler(self, size: int) -> Sampler:
        outputs = {
            name: tensor.view(size, *tensor.shape[1:]) for name, tensor in self._sampled.items()
        }
        logits = self.logits_rows(size)
        return Sampler(self.worker, self.sample_id, size, logits=logits, outputs=outputs)

    def _prefill(self, plan: StepPlan) -> tuple[list[SampledToken], list[PromptToken]]:
        if not plan.prefill:
            return [], []
        arrays = pack_prefill(
            plan.prefill, self._sequences, self.config.block_size, self.max_blocks_per_seq
        )
        logits = self.logits_rows(len(arrays["logits_indices"]))
        layers = plan.prefill_layers
        if self.layered is None or layers is None:
            self.dispatch(self.prefill_id, "prefill", arrays, logits=logits, **self.cache)
        else:
            self.layered.run(self, plan.prefill, layers, arrays, logits)
            if layers != self.layered.groups[-1]:
                return [], []
        return self._after_prefill(plan.prefill)

    def _after_prefill(
        self, chunks: Sequence[PrefillChunk]
    ) -> tuple[list[SampledToken], list[PromptToken]]:
        """Samples after chunks, and looks up known tokens; in the order of the logits."""
        wanted = wanted_after(chunks, self._sequences)
        if not wanted:
            return [], []
        samples = self.sample(
            [seq.sampling_row() if at is None else seq.prompt_row(at) for seq, at in wanted]
        )
        sampled: list[SampledToken] = []
        known: list[PromptToken] = []
        for index, (sequence, position) in enumerate(wanted):
            if position is None:
                sampled.append(take(samples, index, sequence))
            else:
                known.append(look_up(samples, index, sequence, position))
        return sampled, known

    def _decode(self, plan: StepPlan) -> list[SampledToken]:
        batch = plan.decode
        if batch is None:
            return []
        dispatch = self._decodes[batch.batch_size]
        dispatch.pack(batch, self._sequences)
        self.run_decode(dispatch)
        if batch.rows[0].draft_token_ids:
            return self._check_drafts(batch.rows[0])
        rows = [self._sequences[row.seq_id] for row in batch.rows]
        samples = self.sample([row.sampling_row() for row in rows])
        return [take(samples, index, row) for index, row in enumerate(rows)]

    def _check_drafts(self, row: DecodeRow) -> list[SampledToken]:
        """Samples at every draft's place as if it were right; keeps what turns out to be.

        Each sample is drawn as the target itself draws it, so what is kept is what a run
        without drafts gives. K and V of other drafts are overwritten by what comes in their
        place, before anything reads them.
        """
        sequence, drafts = self._sequences[row.seq_id], row.draft_token_ids
        ahead = [sequence.sampling_row(drafts[:count]) for count in range(len(drafts) + 1)]
        samples = self.sample(ahead)
        tokens = [take(samples, 0, sequence)]
        for index, draft in enumerate(drafts, start=1):
            if tokens[-1].token_id != draft:
                break
            tokens.append(take(samples, index, sequence))
        return tokens

    def _upload(self, name: str, key: str, values: NDArray[np.generic]) -> WorkerTensor:
        memory = self._inputs.get((name, key))
        if memory is None or memory.num_elements < values.size:
            if memory is not None:
                self.worker.free(memory)
            # Twice what is needed, so that inputs that grow slowly don't allocate every step.
            memory = self.worker.alloc((2 * values.size,), _DTYPES[values.dtype.name])
            self._inputs[name, key] = memory
        self.worker.upload(memory, values)
        return memory.view(*values.shape)
