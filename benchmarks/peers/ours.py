"""This project's engine, in its own process, without Ray.

With its defaults, except that weights are in the process's own memory, as in all peers: otherwise a
slower page cache would be measured.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.workload import Generated, Workload, run_adapter
from qwen3_a8w8.bench.engine import Workload as BenchWorkload
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.engine import Engine
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.runner.model_runner import ModelRunner


class Ours:
    """The in-process engine on a W8A8 checkpoint.

    Args:
        checkpoint: what was made by `compare_peers.py`; its part `w8a8` is run.
        threads: CPU threads.
        workload: sizes the cache.
        enable: experimental flags.
    """

    def __init__(
        self, checkpoint: Path, threads: int, workload: Workload, enable: tuple[str, ...] = ()
    ) -> None:
        sizes = BenchWorkload(
            batch_size=workload.batch_size,
            prompt_tokens=workload.prefill_tokens,
            new_tokens=workload.max_tokens_per_sequence - workload.context_tokens,
            context_tokens=workload.context_tokens,
        )
        config = sizes.engine_config(
            EngineConfig(num_threads=threads, enable=enable, use_mmap=False)
        )
        runner = ModelRunner.load(str(checkpoint / "w8a8"), config)
        self._engine = Engine(runner, config)

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Generated:
        """See `Peer`."""
        sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        instants = [0.0] * (num_tokens + 1)
        num_seen = [0] * len(prompts)

        def on_event(request_index: int, index: int, event: TokenEvent) -> bool:
            for _ in event.token_ids:
                num_seen[request_index] += 1
                instants[num_seen[request_index]] = time.perf_counter()
            return False

        requests = [EngineRequest(tuple(prompt), sampling) for prompt in prompts]
        instants[0] = time.perf_counter()
        outputs = self._engine.generate_batch(requests, on_event)
        return Generated([list(output.token_ids) for output in outputs], instants)


if __name__ == "__main__":
    run_adapter("ours", ["torch"], Ours)
