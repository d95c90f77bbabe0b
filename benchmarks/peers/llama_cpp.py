"""llama.cpp through llama-cpp-python, on Q8_0."""

from __future__ import annotations

import platform
from pathlib import Path

from benchmarks.peers.llama_batches import LlamaBatches
from benchmarks.peers.workload import Workload, run_adapter


def load(checkpoint: Path, threads: int, workload: Workload) -> LlamaBatches:
    """Loads the GGUF file; flash attention on, a KV stream per sequence."""
    import llama_cpp as api

    api.llama_backend_init()
    model_params = api.llama_model_default_params()
    if platform.machine() == "x86_64":
        # For Q8_0 on x86 they change nothing but on processors with AMX, where 0.3.36 crashes.
        model_params.use_extra_bufts = False
    model = api.llama_model_load_from_file(str(checkpoint / "q8_0.gguf").encode(), model_params)
    params = api.llama_context_default_params()
    params.n_seq_max = workload.batch_size
    params.n_ctx = workload.batch_size * (-(-workload.max_tokens_per_sequence // 256) * 256)
    params.n_batch = params.n_ctx
    params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED
    context = api.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError(f"llama.cpp made no context for {checkpoint}; its log says why")
    memory = api.llama_get_memory(context)
    return LlamaBatches(api, context, lambda: api.llama_memory_clear(memory, True), workload)


if __name__ == "__main__":
    run_adapter("llama_cpp", ["llama-cpp-python"], load)
