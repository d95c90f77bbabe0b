"""Executes step plans: prefill, decode and sample on one device.

The runner validates a plan, keeps each live sequence's ids and grammar state, and runs the
plan as dispatches of its model on the device (`device_model.py`). It makes no decisions: the
scheduler (`engine/`) selects sequences, assigns blocks and ends sequences.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

from qwen3_a8w8.checkpoint.checkpoint import Checkpoint, open_checkpoint
from qwen3_a8w8.checkpoint.resolve import resolve_model
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.plan import (
    DecodeRow,
    PrefillChunk,
    PromptToken,
    RunnerCapabilities,
    SampledToken,
    StepPlan,
    StepResult,
)
from qwen3_a8w8.experimental import SKIP_SELF_CHECK
from qwen3_a8w8.kernels.backend import Backend, DeviceBackend
from qwen3_a8w8.kernels.select import select_backend
from qwen3_a8w8.runner.carried_ids import Stage
from qwen3_a8w8.runner.device_model import MAX_PREFILL_SEQS, DeviceModel
from qwen3_a8w8.runner.packed_cache import PackedCache
from qwen3_a8w8.runner.packing import pack_prefill
from qwen3_a8w8.runner.sampler import look_up, take, wanted_after
from qwen3_a8w8.runner.self_check import self_check
from qwen3_a8w8.runner.sequences import RunnerSequence
from qwen3_a8w8.runner.sizing import (
    check_sequence_fits,
    free_host_memory_bytes,
    max_model_len,
    num_kv_blocks,
)
from qwen3_a8w8.runner.validation import validate_plan
from qwen3_a8w8.runner.warm_up import warm_up, warm_up_blocks
from qwen3_a8w8.text.grammar_compiler import GrammarCompiler
from qwen3_a8w8.text.structured import StructuredOutput
from qwen3_a8w8.version import __version__


class ModelRunner:
    """One model on one device; implements `engine.plan.Runner`.

    Attributes:
        model: the architecture.
        config: the engine's options.
        device: the model on its device: weights, KV cache and dispatches.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        backend: Backend,
        packed_cache: PackedCache | None = None,
    ) -> None:
        """Loads, warms up and sizes the KV cache.

        Args:
            checkpoint: open checkpoint; read during construction, not needed afterwards.
            config: the engine's options.
            backend: kernels; owned by the runner.
            packed_cache: where packed weights are stored between runs; None: nowhere.

        Raises:
            ConfigError: max_model_len or the KV cache doesn't fit, or the packed cache can't be
                used.
            CheckpointError: a tensor can't be read.
        """
        self.model = checkpoint.config
        self.config = config
        self._sequences: dict[int, RunnerSequence] = {}
        self._max_model_len = max_model_len(self.model, config)
        self.device = DeviceModel(checkpoint, config, self._max_model_len, backend, packed_cache)
        self._grammars = GrammarCompiler(
            checkpoint.directory,
            vocab_size=self.model.vocab_size,
            eos_token_ids=self.model.eos_token_ids,
        )
        try:
            self._capabilities = self._warm_up_and_size(backend)
        except BaseException:
            self.close()
            raise

    @classmethod
    def load(cls, model: str, config: EngineConfig) -> ModelRunner:
        """Resolves and opens a model and creates its runner.

        Args:
            model: directory, "demo" or hub id.
            config: the engine's options.

        Raises:
            CheckpointError: the model can't be found or read.
            KernelUnavailableError: the device can't run here, or gives wrong results.
            ConfigError: as for the constructor.
        """
        with open_checkpoint(resolve_model(model)) as checkpoint:
            backend = select_backend(config.device, config.num_threads, config.isa)
            if SKIP_SELF_CHECK not in config.enable:
                self_check(backend, config.active_flags)
            packed_cache = PackedCache.from_setting(
                config.packed_cache_dir, use_mmap=config.use_mmap
            )
            return cls(checkpoint, config, backend, packed_cache)

    @property
    def capabilities(self) -> RunnerCapabilities:
        """Capabilities of this runner, including measured step times."""
        return self._capabilities

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step.

        Raises:
            UnsupportedBatchSizeError: the decode batch has a size that isn't compiled.
            InvalidRequestError: the plan is invalid; nothing of it was executed.
            EngineDeadError: the model computed logits that aren't finite.
        """
        validate_plan(plan, self._sequences, self._capabilities, self.device.layered)
        for seq_id in plan.release:
            self._sequences.pop(seq_id, None)
            self.device.carried.forget(seq_id)
        for start in plan.start:
            self.device.carried.forget(start.seq_id)
            structured = start.sampling.structured
            grammar = None if structured is None else self._grammars.start(structured)
            self._sequences[start.seq_id] = RunnerSequence(
                start, grammar, vocab_size=self.model.vocab_size
            )
        start_s = time.perf_counter()
        sampled, prompt_tokens = self._prefill(plan)
        prefill_time_s = time.perf_counter() - start_s if plan.prefill else 0.0
        sampled += self._decode(plan)
        device_time_s, idle_s = self.device.clock.end_step()
        return StepResult(
            plan.step_id,
            tuple(sampled),
            device_time_s,
            prefill_time_s,
            idle_s,
            tuple(prompt_tokens),
        )

    def prepare_grammar(self, structured: StructuredOutput) -> None:
        """Compiles the grammar of a request that is about to be admitted, and waits for it.

        Raises:
            InvalidRequestError: the grammar can't be used; `param` names its field.
        """
        self._grammars.prepare(structured)

    def close(self) -> None:
        """Frees device memory, threads and sequences. Idempotent."""
        self._grammars.close()
        self._sequences.clear()
        self.device.close()

    def _warm_up_and_size(self, backend: Backend) -> RunnerCapabilities:
        # Scratch arenas and thread stacks allocate their memory now, not when requests are live;
        # the cache may use what is free afterwards, minus the later growth of the arenas.
        has_memory = isinstance(backend, DeviceBackend)
        self.device.alloc_cache(warm_up_blocks(self.config) if has_memory else 1)
        warm = warm_up(self.device)
        self.device.clock.end_step()
        # The kernel counts mapped weights as free, as it could read them again from the file.
        reserved = self.device.mapped_bytes + warm.arena_growth_bytes
        free_bytes = max(0, _free_memory_bytes(backend) - reserved)
        blocks = num_kv_blocks(self.config, self.model, self._max_model_len, free_bytes)
        check_sequence_fits(self.config, self._max_model_len, blocks)
        self.device.alloc_cache(blocks)
        flags = self.config.active_flags
        return RunnerCapabilities(
            decode_batch_sizes=tuple(sorted(self.config.decode_batch_sizes)),
            prefill_chunk_tokens=self.config.prefill_chunk_tokens,
            max_prefill_seqs=MAX_PREFILL_SEQS,
            block_size=self.config.block_size,
            num_kv_blocks=blocks,
            max_model_len=self._max_model_len,
            vocab_size=self.model.vocab_size,
            eos_token_ids=self.model.eos_token_ids,
            decode_step_s=warm.decode_step_s,
            description={
                **backend.describe(),
                **({"flags": ", ".join(flags)} if flags else {}),
                "fingerprint": _fingerprint(self.device.weights_fingerprint, backend, self.config),
            },
            num_layers=self.model.num_layers,
            prefill_token_s=warm.prefill_token_s,
            max_draft_tokens=self.device.max_draft_tokens,
        )

    def _prefill(self, plan: StepPlan) -> tuple[list[SampledToken], list[PromptToken]]:
        if not plan.prefill:
            return [], []
        arrays = pack_prefill(
            plan.prefill, self._sequences, self.config.block_size, self.device.max_blocks_per_seq
        )
        logits = self.device.logits_rows(len(arrays["logits_indices"]))
        layered, layers = self.device.layered, plan.prefill_layers
        if layered is None or layers is None:
            self.device.prefill(arrays, logits)
        else:
            self.device.prefill_layers(plan.prefill, layers, arrays, logits)
            if layers != layered.groups[-1]:
                return [], []
        return self._after_prefill(plan.prefill)

    def _after_prefill(
        self, chunks: Sequence[PrefillChunk]
    ) -> tuple[list[SampledToken], list[PromptToken]]:
        """Samples after chunks, and looks up known tokens; in the order of the logits."""
        wanted = wanted_after(chunks, self._sequences)
        if not wanted:
            return [], []
        samples = self.device.sample(
            [seq.sampling_row() if at is None else seq.prompt_row(at) for seq, at in wanted],
            Stage.PREFILL,
        )
        sampled: list[SampledToken] = []
        known: list[PromptToken] = []
        for index, (sequence, position) in enumerate(wanted):
            if position is None:
                sampled.append(take(samples, index, sequence))
                self._carry(Stage.PREFILL, index, sampled[-1])
            else:
                known.append(look_up(samples, index, sequence, position))
        return sampled, known

    def _decode(self, plan: StepPlan) -> list[SampledToken]:
        batch = plan.decode
        if batch is None:
            return []
        dispatch = self.device.decode_dispatch(batch.batch_size)
        dispatch.pack(batch, self._sequences, self.device.carried)
        self.device.run_decode(dispatch)
        if batch.rows[0].draft_token_ids:
            return self._verify_drafts(batch.rows[0])
        rows = [self._sequences[row.seq_id] for row in batch.rows]
        samples = self.device.sample([row.sampling_row() for row in rows], Stage.DECODE)
        tokens = [take(samples, index, row) for index, row in enumerate(rows)]
        for index, token in enumerate(tokens):
            self._carry(Stage.DECODE, index, token)
        return tokens

    def _carry(self, stage: Stage, row: int, token: SampledToken) -> None:
        """Notes where on the device a sequence's newest id is."""
        self.device.carried.put(stage, row, token.seq_id, token.position)

    def _verify_drafts(self, row: DecodeRow) -> list[SampledToken]:
        """Samples at the position of every draft token; accepts drafts up to the first mismatch.

        Each sample is drawn exactly as without draft tokens, so the accepted tokens are those of
        a run without them. K and V of rejected draft tokens are overwritten by the tokens at
        their positions before anything reads them.
        """
        sequence, drafts = self._sequences[row.seq_id], row.draft_token_ids
        ahead = [sequence.sampling_row(drafts[:count]) for count in range(len(drafts) + 1)]
        samples = self.device.sample(ahead, Stage.DECODE)
        tokens = [take(samples, 0, sequence)]
        for index, draft in enumerate(drafts, start=1):
            if tokens[-1].token_id != draft:
                break
            tokens.append(take(samples, index, sequence))
        self._carry(Stage.DECODE, len(tokens) - 1, tokens[-1])
        return tokens


def _free_memory_bytes(backend: Backend) -> int:
    if isinstance(backend, DeviceBackend):
        return backend.free_memory_bytes()
    return free_host_memory_bytes()


def _fingerprint(weights: str, backend: Backend, config: EngineConfig) -> str:
    """Names what an answer depends on besides its request: weights, numerics, version.

    Threads, batch sizes, chunks and memory aren't among it: answers don't depend on them.

    Args:
        weights: the checkpoint's fingerprint.
        backend: kernels.
        config: the engine's options.
    """
    numerics = {
        name: value
        for name, value in backend.describe().items()
        if name not in ("threads", "graphs", "batch_invariance")
    }
    parts = (
        __version__,
        weights,
        sorted(numerics.items()),
        config.kv_cache_dtype,
        config.block_size,
        config.active_flags,
    )
    return f"fp_{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"
