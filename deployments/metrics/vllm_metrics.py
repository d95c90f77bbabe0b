"""The replicas' values under vLLM's names, for dashboards and gateways made for vLLM.

Off unless `metrics.vllm_names` is set. A replica is an engine; `engine` counts from 0 in the order
of the replicas' ids. Where vLLM counts requests, these count sequences: with `n` = 2, two. Buckets
of histograms are our own.

Source: vLLM 0.32, vllm/v1/metrics/loggers.py, and the protocol of the Gateway API inference
extension, which reads num_requests_waiting, num_requests_running, kv_cache_usage_perc and
cache_config_info.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from deployments.metrics.families import Labels, counter, gauge, histogram
from deployments.metrics.http_metrics import IngressReport
from deployments.metrics.replica_metrics import named_metrics
from deployments.replicas.report import ReplicaReport

PREFIX = "vllm"

SHARED = frozenset(
    {
        "num_requests_running",
        "num_requests_waiting",
        "prefix_cache_queries",
        "prefix_cache_hits",
        "num_preemptions",
        "prompt_tokens",
        "generation_tokens",
        "spec_decode_num_drafts",
        "spec_decode_num_draft_tokens",
        "spec_decode_num_accepted_tokens",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_params_max_tokens",
    }
)
"""Names that mean the same under either prefix."""


def vllm_metrics(
    model: str, reports: Sequence[ReplicaReport], ingresses: Sequence[IngressReport]
) -> Iterator[Metric]:
    """All families under vLLM's names.

    Args:
        model: the model's name in the API.
        reports: of the replicas, in the order of their ids.
        ingresses: of the ingress processes.
    """
    engines = {report.replica_id: str(number) for number, report in enumerate(reports)}

    def labels(report: ReplicaReport) -> Labels:
        return {"model_name": model, "engine": engines[report.replica_id]}

    yield from named_metrics(PREFIX, ":", reports, labels, SHARED.__contains__)
    yield counter(
        f"{PREFIX}:prompt_tokens_cached",
        "prompt tokens that came from the prefix cache",
        [(labels(r), float(r.stats.counters.num_prefix_hit_tokens)) for r in reports],
    )
    yield histogram(
        # vLLM's own name of a histogram, in spite of the ending.
        f"{PREFIX}:iteration_tokens_total",
        "prompt positions computed and tokens generated per step",
        [(labels(report), report.stats.counters.step_tokens) for report in reports],
    )
    yield histogram(
        f"{PREFIX}:request_max_num_generation_tokens",
        "generated tokens of finished sequences",
        [(labels(report), report.stats.requests.generation_tokens) for report in reports],
    )
    yield histogram(
        f"{PREFIX}:request_params_n",
        "n of accepted requests, by ingress process",
        [
            ({"model_name": model, "engine": "", "ingress": one.ingress_id}, one.num_choices)
            for one in ingresses
        ],
    )
    yield gauge(
        f"{PREFIX}:cache_config_info",
        "the KV cache's configuration",
        [
            (
                {
                    **labels(report),
                    "block_size": str(report.stats.block_size),
                    "num_gpu_blocks": str(report.stats.num_blocks),
                },
                1,
            )
            for report in reports
        ],
    )
