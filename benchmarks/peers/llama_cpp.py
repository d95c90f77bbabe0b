"""llama.cpp through llama-cpp-python, on Q8_0."""

from __future__ import annotations

import platform
from pathlib import Path

from benchmarks.peers.llama_batches import LlamaBatches
from benchmarks.peers.workload import Workload, run_adapter


def load(checkpoint: Path, threads: int, workload: Workload) -> LlamaBatches:
    """Loads the GGUF file; flash attention on, a KV stream per sequence."""
    import llama_cpp as api

    return LlamaBatches(
        api,
        checkpoint,
        threads,
        workload,
        # For Q8_0 on x86 these buffers change nothing but on processors with AMX, where
        # 0.3.36 crashes.
        model_options={"use_extra_bufts": platform.machine() != "x86_64"},
        context_options={"flash_attn_type": api.LLAMA_FLASH_ATTN_TYPE_ENABLED},
        clear=lambda context: api.llama_memory_clear(api.llama_get_memory(context), True),
    )


if __name__ == "__main__":
    run_adapter("llama_cpp", ["llama-cpp-python"], load)
