"""ik_llama.cpp through ik-llama-cpp-python, on Q8_0, repacked when loaded."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.llama_batches import LlamaBatches
from benchmarks.peers.workload import Workload, run_adapter


def load(checkpoint: Path, threads: int, workload: Workload) -> LlamaBatches:
    """Loads the GGUF file; flash attention on."""
    # The package wraps one sequence only; batches need the C API below it.
    from ik_llama_cpp import _ctypes_api as api

    return LlamaBatches(
        api,
        checkpoint,
        threads,
        workload,
        model_options={"use_mmap": False, "repack_tensors": True},
        context_options={"flash_attn": True},
        clear=api.llama_kv_cache_clear,
    )


if __name__ == "__main__":
    run_adapter("ik_llama_cpp", ["ik-llama-cpp-python"], load)
