"""Compiles a model's callables and binds their weights.

The callables are defined in `model/`; `packed_cache.py` provides packed weights.
Doesn't know about the KV cache's size or about sequences.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qwen3_a8w8.checkpoint.checkpoint import Checkpoint
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.experimental import FLAGS
from qwen3_a8w8.kernels.backend import CompiledCallable, Compiler, DeviceBackend
from qwen3_a8w8.kernels.program import Ref
from qwen3_a8w8.model import qwen3
from qwen3_a8w8.model.linears import float_options
from qwen3_a8w8.model.weights import TABLE_NAMES, make_tables
from qwen3_a8w8.runner.layered_prefill import LayeredPrefill, layer_groups
from qwen3_a8w8.runner.packed_cache import PackedCache, load_packed
from qwen3_a8w8.runner.worker import Worker


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The callables of a model with their weights, registered with a worker.

    Attributes:
        prefill_id: the worker's id of `qwen3.prefill`.
        decode_id: of `qwen3.decode`.
        sample_id: of `qwen3.sample`.
        layered: prefill in groups of layers, if configured.
        packed_memory: the packed file of the weights, see `LoadedWeights.memory`.
        mapped_bytes: its bytes in the page cache, which the kernel counts as free memory.
    """

    prefill_id: int
    decode_id: int
    sample_id: int
    layered: LayeredPrefill | None
    packed_memory: NDArray[np.uint8] | None
    mapped_bytes: int


def load_model(
    checkpoint: Checkpoint,
    config: EngineConfig,
    max_model_len: int,
    compiler: Compiler,
    worker: Worker,
    packed_cache: PackedCache | None,
) -> LoadedModel:
    """Compiles prefill, decode and sample, and binds the checkpoint's weights to them.

    Args:
        checkpoint: open; not needed afterwards.
        config: provides block size, flags and dispatch sizes.
        max_model_len: longest sequence in tokens.
        compiler: of the backend that runs the callables; owns them.
        worker: registers them.
        packed_cache: where packed weights are stored between runs; None: nowhere.

    Raises:
        CheckpointError: a tensor can't be read.
        ConfigError: the packed cache can't be used, or the device's memory is too small.
    """
    model = checkpoint.config
    dims = {
        **model.static_dims(),
        **qwen3.kv_cache_dims(config.block_size, is_bf16=config.has_bf16_kv_cache),
        "MAX_POSITIONS": max_model_len,
    }
    options = {
        "rms_norm_eps": model.rms_norm_eps,
        **float_options(checkpoint.float_linears),
        **{flag: 1 for flag in config.active_flags if FLAGS[flag].changes == "output"},
    }
    compiled: list[CompiledCallable] = [
        compiler.compile(fn, dims, options) for fn in (qwen3.prefill, qwen3.decode, qwen3.sample)
    ]
    registered = list(compiled)
    layered = None
    layers_per_dispatch = config.prefill_layers_per_dispatch
    if layers_per_dispatch is not None and layers_per_dispatch < model.num_layers:
        groups = layer_groups(model.num_layers, layers_per_dispatch)
        layered = LayeredPrefill(compiler, dims, options, groups)
        compiled += layered.callables
    refs = {name: ref for fn in compiled for name, ref in fn.constants.items()}
    weight_refs = {name: ref for name, ref in refs.items() if name not in TABLE_NAMES}
    if isinstance(compiler.backend, DeviceBackend):
        _check_fits(weight_refs.values(), compiler.backend.free_memory_bytes())
    weights = load_packed(checkpoint, weight_refs, compiler.backend, packed_cache)
    constants = weights.constants | make_tables(model, refs, compiler.backend.pack)
    for fn in compiled:
        fn.bind(constants)
    prefill_id, decode_id, sample_id = map(worker.register, registered)
    if layered is not None:
        layered.register(worker, config.prefill_chunk_tokens)
    return LoadedModel(
        prefill_id, decode_id, sample_id, layered, weights.memory, weights.mapped_bytes
    )


def _check_fits(refs: Iterable[Ref], free_bytes: int) -> None:
    """Refuses a model before its weights fill the device."""
    needed = sum(ref.num_elements({}) * ref.dtype.itemsize for ref in refs)
    if needed > free_bytes:
        raise ConfigError(
            f"the model has {needed} bytes of weights, but the device has {free_bytes} free; use a "
            "smaller model or a larger device, or end what else runs on it"
        )
