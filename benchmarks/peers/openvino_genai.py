"""OpenVINO GenAI's continuous batching on int8 weights, activations quantised per 128."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.peers.workload import Generated, Workload, run_adapter

GROUP_SIZE = 128
"""Activations that share a scale; without it OpenVINO multiplies in floating point."""


class OpenVino:
    """A `ContinuousBatchingPipeline` whose steps are timed."""

    def __init__(self, checkpoint: Path, threads: int, workload: Workload) -> None:
        import openvino_genai as genai

        self._genai = genai
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 2
        scheduler.max_num_seqs = workload.batch_size
        scheduler.max_num_batched_tokens = workload.batch_size * workload.context_tokens
        scheduler.enable_prefix_caching = False
        self._pipeline = genai.ContinuousBatchingPipeline(
            checkpoint / "openvino",
            scheduler,
            "CPU",
            {
                "INFERENCE_NUM_THREADS": threads,
                "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP_SIZE,
                "KV_CACHE_PRECISION": "u8",
            },
        )
        self._num_requests = 0

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Generated:
        """See `Peer`."""
        import openvino

        config = self._genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.ignore_eos = True
        config.do_sample = False
        token_ids: list[list[int]] = [[] for _ in prompts]
        instants = [time.perf_counter()]
        handles = []
        for prompt in prompts:
            tensor = openvino.Tensor(np.array([prompt], np.int64))
            handles.append(self._pipeline.add_request(self._num_requests, tensor, config))
            self._num_requests += 1
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for ids, handle in zip(token_ids, handles, strict=True):
                while handle.can_read():
                    for output in handle.read().values():
                        ids.extend(output.generated_ids)
            if min(map(len, token_ids)) >= len(instants):
                instants.append(time.perf_counter())
        return Generated(token_ids, instants)


if __name__ == "__main__":
    run_adapter("openvino_genai", ["openvino-genai", "openvino"], OpenVino)
