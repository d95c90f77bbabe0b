"""A replica's report, and the Prometheus metrics built from it.

Metric names are vLLM's where one exists, with our prefix.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from qwen3_a8w8.engine.stats.engine_stats import EngineStats
from qwen3_a8w8.engine.stats.request_stats import Histogram

PREFIX = "qwen3_a8w8"


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """One replica at one moment.

    Attributes:
        replica_id: Serve's id.
        replica_pid: process of the batch router.
        actor_pid: process of the actor.
        stats: of the engine.
    """

    replica_id: str
    replica_pid: int
    actor_pid: int
    stats: EngineStats


def prometheus_text(reports: Iterable[ReplicaReport]) -> bytes:
    """The reports in Prometheus text format, every sample labelled with its replica."""
    registry = CollectorRegistry()
    registry.register(_Reports(list(reports)))
    return generate_latest(registry)


class _Reports:
    """A collector over existing reports."""

    def __init__(self, reports: list[ReplicaReport]) -> None:
        self._reports = reports

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()

    def _gauges(self) -> Iterator[Metric]:
        gauges = {
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
        for name, (text, attribute) in gauges.items():
            gauge = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=["replica"])
            for report in self._reports:
                gauge.add_metric([report.replica_id], getattr(report.stats, attribute))
            yield gauge
        usage = GaugeMetricFamily(
            f"{PREFIX}_kv_cache_usage_perc", "share of KV blocks in use, 0 to 1", labels=["replica"]
        )
        info = GaugeMetricFamily(
            f"{PREFIX}_replica_info",
            "processes of a replica",
            labels=["replica", "pid", "actor_pid"],
        )
        for report in self._reports:
            in_use, free = report.stats.num_blocks_in_use, report.stats.num_blocks_free
            usage.add_metric([report.replica_id], in_use / max(1, in_use + free))
            processes = (report.replica_pid, report.actor_pid)
            info.add_metric([report.replica_id, *map(str, processes)], 1)
        yield from (usage, info)

    def _counters(self) -> Iterator[Metric]:
        counters = {
            "steps": ("steps planned", "counters.num_steps"),
            "prefill_tokens": ("positions computed by prefill", "counters.num_prefill_tokens"),
            "decode_rows": ("active rows of all decode dispatches", "counters.num_decode_rows"),
            "prefix_cache_queries": ("prompt tokens looked up", "counters.num_prefix_query_tokens"),
            "prefix_cache_hits": ("prompt tokens cached", "counters.num_prefix_hit_tokens"),
            "num_preemptions": ("preemptions of sequences", "counters.num_preemptions"),
            "failed_steps": (
                "steps that failed in the runner",
                "counters.num_failed_steps",
            ),
            "spec_decode_num_draft_tokens": ("draft tokens verified", "counters.num_draft_tokens"),
            "spec_decode_num_accepted_tokens": (
                "accepted draft tokens",
                "counters.num_accepted_draft_tokens",
            ),
            "host_gap_seconds": (
                "seconds the device waited between steps",
                "counters.host_gap_s",
            ),
            "prompt_tokens": (
                "prompt tokens of started sequences, cached ones included",
                "counters.num_prefix_query_tokens",
            ),
            "generation_tokens": ("tokens generated", "requests.num_generated_tokens"),
        }
        for name, (text, attribute) in counters.items():
            counter = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=["replica"])
            for report in self._reports:
                counter.add_metric([report.replica_id], attrgetter(attribute)(report.stats))
            yield counter
        busy = CounterMetricFamily(
            f"{PREFIX}_device_time_seconds", "seconds the device was busy", labels=["replica"]
        )
        batches = CounterMetricFamily(
            f"{PREFIX}_decode_batches", "decode dispatches", labels=["replica", "batch_size"]
        )
        ended = CounterMetricFamily(
            f"{PREFIX}_request_success", "sequences finished", labels=["replica", "finished_reason"]
        )
        for report in self._reports:
            busy.add_metric([report.replica_id], report.stats.device_time_s)
            for size, count in report.stats.counters.decode_batches.items():
                batches.add_metric([report.replica_id, str(size)], count)
            for reason, count in report.stats.num_finished.items():
                ended.add_metric([report.replica_id, reason], count)
        yield from (busy, batches, ended)

    def _histograms(self) -> Iterator[Metric]:
        histograms = {
            "time_to_first_token_seconds": (
                "seconds from a sequence's arrival at the engine to its first token",
                "requests.ttft_s",
            ),
            "inter_token_latency_seconds": (
                "seconds between the tokens of a sequence",
                "requests.itl_s",
            ),
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
            "request_prompt_tokens": (
                "prompt tokens of finished sequences",
                "requests.prompt_tokens",
            ),
            "request_generation_tokens": (
                "generated tokens of finished sequences",
                "requests.generation_tokens",
            ),
        }
        for name, (text, attribute) in histograms.items():
            family = HistogramMetricFamily(f"{PREFIX}_{name}", text, labels=["replica"])
            for report in self._reports:
                histogram: Histogram = attrgetter(attribute)(report.stats)
                buckets = [(_bound(le), n) for le, n in histogram.cumulative()]
                family.add_metric([report.replica_id], buckets, histogram.total)
            yield family


def _bound(value: float) -> str:
    return "+Inf" if math.isinf(value) else repr(float(value))
