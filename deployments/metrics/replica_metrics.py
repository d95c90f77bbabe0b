"""Metrics of the replicas under our names, every sample labelled with its replica.

Names are vLLM's where one exists, with our prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from prometheus_client.core import Metric

from deployments.metrics.families import Labels, counter, gauge, histogram
from deployments.replicas.report import ReplicaReport
from qwen3_a8w8.engine.stats.engine_stats import EngineStats

PREFIX = "qwen3_a8w8"

GAUGES = {
    "num_requests_running": ("sequences with KV blocks", "num_running"),
    "num_requests_waiting": ("sequences without KV blocks", "num_waiting"),
    "num_tokens_waiting": ("tokens of waiting sequences", "num_waiting_tokens"),
    "kv_blocks_in_use": ("KV blocks held by sequences", "num_blocks_in_use"),
    "kv_blocks_free": ("free KV blocks, cached ones included", "num_blocks_free"),
    "decode_active_rows": ("active rows of the last decode dispatch", "num_active_rows"),
    "decode_batch_size": ("rows of the last decode dispatch", "last_batch_size"),
    "decode_fill_ratio": ("active rows / rows, all decode dispatches", "decode_fill_ratio"),
    "prefix_cache_hit_rate": ("prompt tokens cached / looked up", "prefix_hit_rate"),
}
COUNTERS = {
    "steps": ("steps planned", "counters.num_steps"),
    "prefill_tokens": ("positions computed by prefill", "counters.num_prefill_tokens"),
    "decode_rows": ("active rows of all decode dispatches", "counters.num_decode_rows"),
    "prefix_cache_queries": ("prompt tokens looked up", "counters.num_prefix_query_tokens"),
    "prefix_cache_hits": ("prompt tokens cached", "counters.num_prefix_hit_tokens"),
    "num_preemptions": ("preemptions of sequences", "counters.num_preemptions"),
    "failed_steps": ("steps that failed in the runner", "counters.num_failed_steps"),
    "spec_decode_num_drafts": ("drafts verified", "counters.num_drafts"),
    "spec_decode_num_draft_tokens": ("draft tokens verified", "counters.num_draft_tokens"),
    "spec_decode_num_accepted_tokens": (
        "accepted draft tokens",
        "counters.num_accepted_draft_tokens",
    ),
    "host_gap_seconds": ("seconds the device waited between steps", "counters.host_gap_s"),
    "device_time_seconds": ("seconds the device was busy", "device_time_s"),
    "prompt_tokens": (
        "prompt tokens of started sequences, cached ones included",
        "counters.num_prefix_query_tokens",
    ),
    "generation_tokens": ("tokens generated", "requests.num_generated_tokens"),
}
HISTOGRAMS = {
    "time_to_first_token_seconds": (
        "seconds from a sequence's arrival at the engine to its first token",
        "requests.ttft_s",
    ),
    "inter_token_latency_seconds": ("seconds between the tokens of a sequence", "requests.itl_s"),
    "request_time_per_output_token_seconds": (
        "mean seconds between the tokens of a finished sequence",
        "requests.tpot_s",
    ),
    "e2e_request_latency_seconds": (
        "seconds from a sequence's arrival at the engine to its end",
        "requests.e2e_s",
    ),
    "request_queue_time_seconds": (
        "seconds from a sequence's arrival at the engine to its first blocks",
        "counters.queue_times",
    ),
    "request_prefill_time_seconds": (
        "seconds from a finished sequence's first blocks to its first token",
        "requests.prefill_s",
    ),
    "request_decode_time_seconds": (
        "seconds from a finished sequence's first token to its last",
        "requests.decode_s",
    ),
    "request_inference_time_seconds": (
        "seconds from a finished sequence's first blocks to its last token",
        "requests.inference_s",
    ),
    "request_prompt_tokens": ("prompt tokens of finished sequences", "requests.prompt_tokens"),
    "request_generation_tokens": (
        "generated tokens of finished sequences",
        "requests.generation_tokens",
    ),
    "request_params_max_tokens": (
        "max_tokens of finished sequences that named it",
        "requests.max_tokens",
    ),
    "step_tokens": (
        "prompt positions computed and tokens generated per step",
        "counters.step_tokens",
    ),
}

LabelsOf = Callable[[ReplicaReport], Labels]


def replica_metrics(reports: Sequence[ReplicaReport]) -> Iterator[Metric]:
    """All families of the replicas."""
    yield from named_metrics(PREFIX, "_", reports, _labels)
    yield gauge(
        f"{PREFIX}_replica_info",
        "processes of a replica",
        [
            ({**_labels(r), "pid": str(r.replica_pid), "actor_pid": str(r.actor_pid)}, 1)
            for r in reports
        ],
    )
    yield counter(
        f"{PREFIX}_decode_batches",
        "decode dispatches",
        [
            ({**_labels(report), "batch_size": str(size)}, count)
            for report in reports
            for size, count in report.stats.counters.decode_batches.items()
        ],
    )
    yield gauge(
        f"{PREFIX}_process_resident_memory_bytes",
        "resident memory of a replica's processes; mapped weights count in each that maps them",
        [
            ({**_labels(report), "process": process}, num_bytes)
            for report in reports
            for process, num_bytes in (
                ("batch_router", report.replica_bytes),
                ("actor", report.actor_bytes),
            )
            if num_bytes is not None
        ],
    )


def named_metrics(
    prefix: str,
    separator: str,
    reports: Sequence[ReplicaReport],
    labels_of: LabelsOf,
    is_wanted: Callable[[str], bool] = lambda name: True,
) -> Iterator[Metric]:
    """The families that two projects have, under a prefix and with labels of choice.

    Args:
        prefix: of the names.
        separator: between prefix and name.
        reports: of the replicas.
        labels_of: labels of a replica's samples.
        is_wanted: which of the tables' names.
    """
    for kind, table in ((gauge, GAUGES), (counter, COUNTERS)):
        for name, (text, attribute) in table.items():
            if is_wanted(name):
                read = attrgetter(attribute)
                samples = [(labels_of(report), float(read(report.stats))) for report in reports]
                yield kind(f"{prefix}{separator}{name}", text, samples)
    yield gauge(
        f"{prefix}{separator}kv_cache_usage_perc",
        "share of KV blocks in use, 0 to 1",
        [(labels_of(report), kv_cache_usage(report.stats)) for report in reports],
    )
    yield counter(
        f"{prefix}{separator}request_success",
        "sequences finished",
        [
            ({**labels_of(report), "finished_reason": reason}, count)
            for report in reports
            for reason, count in report.stats.num_finished.items()
        ],
    )
    yield counter(
        f"{prefix}{separator}spec_decode_num_accepted_tokens_per_pos",
        "accepted draft tokens by their place in the draft",
        [
            ({**labels_of(report), "position": str(position)}, count)
            for report in reports
            for position, count in enumerate(report.stats.counters.num_accepted_by_position)
        ],
    )
    for name, (text, attribute) in HISTOGRAMS.items():
        if is_wanted(name):
            read = attrgetter(attribute)
            own = [(labels_of(report), read(report.stats)) for report in reports]
            yield histogram(f"{prefix}{separator}{name}", text, own)


def kv_cache_usage(stats: EngineStats) -> float:
    """Share of the KV blocks in use."""
    return stats.num_blocks_in_use / max(1, stats.num_blocks)


def _labels(report: ReplicaReport) -> Labels:
    return {"replica": report.replica_id}
