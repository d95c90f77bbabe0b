"""A run's result for people (a table, a picture) and for scripts (JSON)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from qwen3_a8w8.bench.serve.metrics import DETAILS, latencies, per_second
from qwen3_a8w8.bench.serve.settings import ServeBench
from qwen3_a8w8.bench.serve.stream import RequestOutput
from qwen3_a8w8.errors import ConfigError

TITLES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "end-to-end latency",
}
_COUNTS = {
    "completed": "requests completed",
    "failed": "requests failed",
    "duration": "duration, s",
    "total_input_tokens": "prompt tokens",
    "total_output_tokens": "generated tokens",
    "request_throughput": "requests/s",
    "request_goodput": "good requests/s",
    "output_throughput": "generated tokens/s",
    "max_output_tokens_per_s": "most chunks in a second",
    "max_concurrent_requests": "most requests active in a second",
    "total_token_throughput": "tokens/s, prompts included",
    "spec_decode_acceptance_rate": "accepted draft tokens, %",
    "spec_decode_acceptance_length": "tokens per step with drafts",
}
_ENGINE = {
    "b1_row_share": "rows decoded in B1",
    "decode_fill_ratio": "fill ratio of decode batches",
    "mean_rows_per_batch": "rows per decode batch",
    "prefix_cache_hit_rate": "prompt tokens from the prefix cache",
    "num_preemptions": "preemptions",
    "host_gap_s": "device waited for the host, s",
}
_OVERHEAD = {
    "engine_median_ttft_ms": "engine alone, TTFT, ms",
    "engine_median_tpot_ms": "engine alone, TPOT, ms",
    "added_ttft_ms": "added to TTFT, ms",
    "added_tpot_ms": "added to TPOT, ms",
    "tpot_ratio": "TPOT / engine's",
}


def print_result(console: Console, bench: ServeBench, result: Mapping[str, Any]) -> None:
    """Prints the figures: counts and rates, then latencies."""
    rate = result["request_rate"]
    concurrency = result["max_concurrency"] or "any number"
    console.print(
        f"{result['model_id']}, {bench.dataset.dataset_name} prompts, {rate} requests/s, "
        f"{concurrency} in flight",
        highlight=False,
        markup=False,
    )
    counts = _table("what", "measured")
    sections = [
        (result, _COUNTS),
        (result.get("engine") or {}, _ENGINE),
        (result.get("overhead") or {}, _OVERHEAD),
    ]
    for values, titles in sections:
        for key, words in titles.items():
            if values.get(key) is not None:
                counts.add_row(words, _number(values[key]))
    console.print(counts)
    percentiles = [f"{percentile:g}" for percentile in bench.result.percentiles]
    latencies_ms = _table("ms", "mean", "median", "std", *(f"P{p}" for p in percentiles))
    for name in bench.result.metrics:
        keys = ("mean", "median", "std", *(f"p{percentile}" for percentile in percentiles))
        latencies_ms.add_row(TITLES[name], *(_number(result[f"{k}_{name}_ms"]) for k in keys))
    console.print(latencies_ms)


def _table(first: str, *headings: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def _number(value: float) -> str:
    return f"{value:,d}" if isinstance(value, int) else f"{value:,.2f}"


def result_path(bench: ServeBench, model: str, date: str) -> Path:
    """Where `--save-result` writes to; vLLM's pattern."""
    traffic, result = bench.traffic, bench.result
    rate = f"{traffic.request_rate}qps"
    if traffic.ramp_up_strategy is not None:
        rate = (
            f"ramp-up-{traffic.ramp_up_strategy}-{traffic.ramp_up_start_rps}qps-"
            f"{traffic.ramp_up_end_rps}qps"
        )
    limit = "" if traffic.max_concurrency is None else f"-concurrency{traffic.max_concurrency}"
    label = result.label or bench.server.backend
    name = f"{label}-{rate}{limit}-{model.rsplit('/', 1)[-1]}-{date}.json"
    return (result.result_dir or Path()) / (result.result_filename or name)


def save_result(path: Path, result: Mapping[str, Any], *, is_appended: bool) -> None:
    """Writes one JSON object with vLLM's keys and ours, as a line.

    Raises:
        ConfigError: it can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if is_appended else "w", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
    except OSError as error:
        raise ConfigError(f"the result {path} can't be written: {error.strerror}") from error


def without_details(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result without the entries of each request."""
    return {key: value for key, value in result.items() if key not in DETAILS}


def plot(path: Path, outputs: Sequence[RequestOutput]) -> None:
    """Draws throughput and active requests over time, and the latencies' distributions.

    Args:
        path: the picture; its suffix selects the format.
        outputs: the run's.

    Raises:
        ConfigError: matplotlib isn't installed, or the picture can't be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "a picture needs matplotlib, which isn't installed; install it with "
            "pip install -e '.[plots]'"
        ) from error
    measured, seconds = latencies(outputs), per_second(outputs)
    figure = Figure(figsize=(9, 6), layout="constrained")
    grid = figure.add_gridspec(2, 3)
    over_time = figure.add_subplot(grid[0, :])
    over_time.step(range(len(seconds.chunks)), seconds.chunks, where="post", label="chunks/s")
    over_time.set_xlabel("seconds")
    over_time.set_ylabel("chunks with tokens per second")
    in_flight = over_time.twinx()
    in_flight.step(range(len(seconds.requests)), seconds.requests, where="post", color="tab:orange")
    in_flight.set_ylabel("active requests", color="tab:orange")
    panels = {"ttft": measured.ttft_s, "tpot": measured.tpot_s, "e2el": measured.e2el_s}
    for column, (name, values_s) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[1, column])
        values_ms = sorted(value * 1e3 for value in values_s)
        shares = [(index + 1) / len(values_ms) for index in range(len(values_ms))]
        axes.plot(values_ms, shares, drawstyle="steps-post")
        axes.set_title(f"{TITLES[name]}, ms", fontsize="medium")
        axes.set_ylim(0, 1.02)
        axes.grid(alpha=0.3)
    figure.axes[2].set_ylabel("share of requests")
    try:
        figure.savefig(str(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot {path}: can't be written: {error}") from error
