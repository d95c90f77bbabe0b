"""Figures of runs whose times are made up, computed by hand."""

import statistics

import numpy as np
import pytest

from qwen3_a8w8.bench.serve.metrics import DETAILS, per_second, summarize
from qwen3_a8w8.bench.serve.stream import RequestOutput

# vLLM 0.32, without `rtfx` (for audio): the generation result of `vllm bench serve`.
VLLM_KEYS = {
    *("duration", "completed", "failed", "total_input_tokens", "total_output_tokens"),
    *("request_throughput", "request_goodput", "output_throughput", "total_token_throughput"),
    *("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times"),
    *("generated_texts", "errors", "max_output_tokens_per_s", "max_concurrent_requests"),
}

FAST = RequestOutput(
    start_s=100.0, prompt_len=10, ttft_s=0.1, itl_s=[0.2, 0.2], latency_s=0.5, output_len=5
)
SLOW = RequestOutput(
    start_s=100.9, prompt_len=30, ttft_s=0.3, itl_s=[0.5] * 4, latency_s=2.3, output_len=5
)
SHORT = RequestOutput(start_s=101.0, prompt_len=5, ttft_s=0.2, latency_s=0.2, output_len=1)
FAILED = RequestOutput(start_s=101.0, prompt_len=7, error="HTTP 503: full")
OUTPUTS = [FAST, FAILED, SLOW, SHORT]


def summary(outputs=OUTPUTS, **changes):
    options = {
        "metrics": ("ttft", "tpot", "itl", "e2el"),
        "percentiles": (50.0, 99.9),
        "goodput_ms": {},
    } | changes
    return summarize(outputs, 4.0, **options)


def test_keys_are_those_of_vllm():
    words = ("mean", "median", "std", "p50", "p99.9")
    statistics_keys = {f"{w}_{name}_ms" for w in words for name in ("ttft", "tpot", "itl", "e2el")}
    assert summary().keys() == VLLM_KEYS | statistics_keys
    assert set(DETAILS) < VLLM_KEYS
    assert "mean_e2el_ms" not in summary(metrics=("ttft",))


def test_throughput_counts_what_succeeded():
    result = summary()
    assert (result["completed"], result["failed"]) == (3, 1)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (45, 11)
    assert result["request_throughput"] == 0.75
    assert result["output_throughput"] == 2.75
    assert result["total_token_throughput"] == 14.0
    assert result["output_lens"] == [5, 0, 5, 1]
    assert result["input_lens"] == [10, 7, 30, 5]
    assert result["errors"] == ["", "HTTP 503: full", "", ""]


def test_latencies_are_in_milliseconds_over_the_requests_that_succeeded():
    result = summary()
    ttft_ms, tpot_ms = [100.0, 300.0, 200.0], [100.0, 500.0]  # 0.4 / 4 and 2.0 / 4; not SHORT
    itl_ms = [200.0] * 2 + [500.0] * 4
    for name, values in (("ttft", ttft_ms), ("tpot", tpot_ms), ("itl", itl_ms)):
        assert result[f"mean_{name}_ms"] == pytest.approx(statistics.mean(values))
        assert result[f"median_{name}_ms"] == pytest.approx(statistics.median(values))
        assert result[f"std_{name}_ms"] == pytest.approx(statistics.pstdev(values))
        assert result[f"p99.9_{name}_ms"] == pytest.approx(np.percentile(values, 99.9))
    assert result["p50_e2el_ms"] == pytest.approx(500.0)


def test_server_without_usage_counts_a_token_per_chunk():
    output = RequestOutput(start_s=0, prompt_len=1, ttft_s=1.0, itl_s=[1.0, 1.0], latency_s=3.0)
    result = summary([output])
    assert result["output_lens"] == [3]
    assert result["mean_tpot_ms"] == 1000.0


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"ttft": 200.0}, 2),
        ({"tpot": 100.0}, 2),  # a request of one token has a time per token of 0
        ({"ttft": 100.0, "e2el": 500.0}, 1),
        ({"e2el": 10_000.0}, 3),
        ({"ttft": 0.0}, 0),
    ],
)
def test_goodput_counts_requests_within_every_limit(limits, expected):
    assert summary(goodput_ms=limits)["request_goodput"] == expected / 4
    assert summary()["request_goodput"] is None


def test_seconds_count_chunks_and_active_requests():
    seconds = per_second(OUTPUTS)
    # FAST: 0.1, 0.3, 0.5; SLOW: 1.2, 1.7, 2.2, 2.7, 3.2; SHORT: 1.2 (seconds after 100.0).
    assert seconds.chunks == [3, 3, 2, 1, 0]
    assert seconds.requests == [2, 2, 1, 1, 0]
    result = summary()
    assert (result["max_output_tokens_per_s"], result["max_concurrent_requests"]) == (3.0, 2)


def test_run_in_which_everything_failed_has_zeros():
    result = summary([FAILED], goodput_ms={"ttft": 1.0})
    assert (result["completed"], result["failed"], result["request_goodput"]) == (0, 1, 0.0)
    assert (result["mean_ttft_ms"], result["max_concurrent_requests"]) == (0.0, 0)
