"""ik_llama.cpp through ik-llama-cpp-python, on Q8_0, repacked when loaded."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.llama_batches import LlamaBatches
from benchmarks.peers.workload import Workload, run_adapter


def load(checkpoint: Path, threads: int, workload: Workload) -> LlamaBatches:
    """Loads the GGUF file; flash attention on."""
    # The package wraps one sequence only; batches need the C API below it.
    from ik_llama_cpp import _ctypes_api as api

    api.llama_backend_init()
    model_params = api.llama_model_default_params()
    model_params.use_mmap = False
    model_params.repack_tensors = True
    model = api.llama_model_load_from_file(str(checkpoint / "q8_0.gguf").encode(), model_params)
    params = api.llama_context_default_params()
    params.n_seq_max = workload.batch_size
    params.n_ctx = workload.batch_size * (-(-workload.max_tokens_per_sequence // 256) * 256)
    params.n_batch = params.n_ctx
    params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn = True
    context = api.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError(f"ik_llama.cpp made no context for {checkpoint}; its log says why")
    return LlamaBatches(api, context, lambda: api.llama_kv_cache_clear(context), workload)


if __name__ == "__main__":
    run_adapter("ik_llama_cpp", ["ik-llama-cpp-python"], load)
