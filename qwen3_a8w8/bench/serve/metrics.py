"""Figures of a run, from its requests' outputs: the result's keys and formulas are vLLM's.

Pure. Source of keys and formulas: `vllm bench serve` of vLLM 0.32 (calculate_metrics). Times are
reported in milliseconds, standard deviations are those of the population, percentiles interpolate
linearly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qwen3_a8w8.bench.serve.stream import RequestOutput

DETAILS = (
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "latencies",
    "start_times",
    "queue_times",
    "generated_texts",
    "errors",
)
"""Keys with an entry per request, which only `--save-detailed` keeps."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds of all requests that succeeded, in their order.

    Attributes:
        ttft_s: to the first token.
        tpot_s: per token after the first, of requests with two tokens or more.
        all_tpot_s: the same, 0.0 for the others.
        itl_s: between chunks with tokens, of all requests.
        e2el_s: to the end.
    """

    ttft_s: list[float]
    tpot_s: list[float]
    all_tpot_s: list[float]
    itl_s: list[float]
    e2el_s: list[float]


def latencies(outputs: Sequence[RequestOutput]) -> Latencies:
    """Latencies of the outputs that succeeded."""
    good = [output for output in outputs if output.has_succeeded]
    all_tpot_s = [_tpot_s(output) for output in good]
    return Latencies(
        ttft_s=[output.ttft_s for output in good],
        tpot_s=[t for t, o in zip(all_tpot_s, good, strict=True) if output_len(o) > 1],
        all_tpot_s=all_tpot_s,
        itl_s=[itl for output in good for itl in output.itl_s],
        e2el_s=[output.latency_s for output in good],
    )


def output_len(output: RequestOutput) -> int:
    """Generated tokens: the server's count, else the chunks with tokens; 0 if it failed."""
    if not output.has_succeeded:
        return 0
    return output.output_len or 1 + len(output.itl_s)


def _tpot_s(output: RequestOutput) -> float:
    num_later = output_len(output) - 1
    return (output.latency_s - output.ttft_s) / num_later if num_later > 0 else 0.0


def summarize(
    outputs: Sequence[RequestOutput],
    duration_s: float,
    *,
    metrics: Sequence[str],
    percentiles: Sequence[float],
    goodput_ms: Mapping[str, float],
) -> dict[str, Any]:
    """The result of a run.

    Args:
        outputs: one per request, in the order of the requests.
        duration_s: seconds from the first request to the last end.
        metrics: of ttft, tpot, itl, e2el: those to report.
        percentiles: of these.
        goodput_ms: what a good request takes at most, by metric; empty: no goodput.
    """
    measured = latencies(outputs)
    lens = [output_len(output) for output in outputs]
    completed = len(measured.e2el_s)
    total_input = sum(output.prompt_len for output in outputs if output.has_succeeded)
    peaks = per_second(outputs)
    result: dict[str, Any] = {
        "duration": duration_s,
        "completed": completed,
        "failed": len(outputs) - completed,
        "total_input_tokens": total_input,
        "total_output_tokens": sum(lens),
        "request_throughput": completed / duration_s,
        "request_goodput": num_good(measured, goodput_ms) / duration_s if goodput_ms else None,
        "output_throughput": sum(lens) / duration_s,
        "total_token_throughput": (total_input + sum(lens)) / duration_s,
        "input_lens": [output.prompt_len for output in outputs],
        "output_lens": lens,
        "ttfts": [output.ttft_s for output in outputs],
        "itls": [output.itl_s for output in outputs],
        "latencies": [output.latency_s for output in outputs],
        "start_times": [output.start_s for output in outputs],
        "queue_times": [output.queue_s for output in outputs],
        "generated_texts": [output.text for output in outputs],
        "errors": [output.error for output in outputs],
        "max_output_tokens_per_s": float(max(peaks.chunks, default=0)),
        "max_concurrent_requests": max(peaks.requests, default=0),
    }
    series = {
        "ttft": measured.ttft_s,
        "tpot": measured.tpot_s,
        "itl": measured.itl_s,
        "e2el": measured.e2el_s,
    }
    for name in metrics:
        result |= _statistics(name, series[name], percentiles)
    return result


def num_good(measured: Latencies, goodput_ms: Mapping[str, float]) -> int:
    """Requests that keep every limit."""
    series = {"ttft": measured.ttft_s, "tpot": measured.all_tpot_s, "e2el": measured.e2el_s}
    limits = [[s * 1e3 <= limit for s in series[name]] for name, limit in goodput_ms.items()]
    return sum(map(all, zip(*limits, strict=True)))


def _statistics(
    name: str, values_s: Sequence[float], percentiles: Sequence[float]
) -> dict[str, Any]:
    values_ms = np.asarray(values_s or [0.0], dtype=np.float64) * 1e3
    result = {
        f"mean_{name}_ms": float(values_ms.mean()),
        f"median_{name}_ms": float(np.median(values_ms)),
        f"std_{name}_ms": float(values_ms.std()),
    }
    for percentile in percentiles:
        word = f"{percentile:g}"
        result[f"p{word}_{name}_ms"] = float(np.percentile(values_ms, percentile))
    return result


@dataclass(frozen=True, slots=True)
class PerSecond:
    """What happened in each second since the first request was sent.

    Attributes:
        chunks: chunks with tokens.
        requests: requests that were in flight at some time in it.
    """

    chunks: list[int]
    requests: list[int]


def per_second(outputs: Sequence[RequestOutput]) -> PerSecond:
    """Chunks and requests per second, of the outputs that succeeded."""
    good = [output for output in outputs if output.has_succeeded]
    if not good:
        return PerSecond([], [])
    begin_s = min(output.start_s for output in good)
    num_seconds = math.ceil(max(o.start_s + o.latency_s for o in good) - begin_s) + 1
    chunks, requests = [0] * num_seconds, [0] * num_seconds
    for output in good:
        time_s = output.start_s + output.ttft_s - begin_s
        for step_s in (0.0, *output.itl_s):
            time_s += step_s
            chunks[int(time_s)] += 1
        start_s = output.start_s - begin_s
        for second in range(int(start_s), int(start_s + output.latency_s) + 1):
            requests[second] += 1
    return PerSecond(chunks, requests)
