"""Writes cluster_configs/grafana/dashboard.json: the metrics of docs/api.md as a Grafana dashboard.

    python tools/grafana_dashboard.py

A test compares the file with what this program would write, holds it to Grafana's own model of a
dashboard, and runs every query on the metrics of a running server.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PATH = Path(__file__).resolve().parents[1] / "cluster_configs" / "grafana" / "dashboard.json"

# What Grafana 10.1 writes; later versions migrate it when they load it.
SCHEMA_VERSION = 38
GRID_COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

ENGINES = 'job=~"$job", replica=~"$replica"'
INGRESSES = 'job=~"$job"'
RATE = "[$__rate_interval]"

Query = tuple[str, str]
"""An expression, and the legend of its series."""


def engines(name: str, *labels: str) -> str:
    """A selector of a metric of the engines."""
    return f"qwen3_a8w8_{name}{{{', '.join([ENGINES, *labels])}}}"


def ingresses(name: str, *labels: str) -> str:
    """A selector of a metric of the ingress processes."""
    return f"qwen3_a8w8_{name}{{{', '.join([INGRESSES, *labels])}}}"


def rate(selector: str, by: str = "") -> str:
    """Increase per second, summed."""
    return f"sum{f' by ({by})' if by else ''} (rate({selector}{RATE}))"


def quantiles(selector: str, by: str = "") -> list[Query]:
    """Median, 95th and 99th percentile of a histogram."""
    group = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return [
        (f"histogram_quantile({q}, {rate(selector, group)})", f"p{100 * q:g}{legend}")
        for q in ((0.95,) if by else (0.5, 0.95, 0.99))
    ]


class Dashboard:
    """Panels in the order in which they are added, from left to right and down."""

    def __init__(self) -> None:
        self.panels: list[dict[str, Any]] = []
        self._x = self._y = self._height = 0

    def row(self, title: str) -> None:
        """Begins a row."""
        self._next_line()
        self._add({"type": "row", "title": title, "collapsed": False, "panels": []}, 24, 1)
        self._next_line()

    def graph(
        self, title: str, unit: str, queries: list[Query], text: str, *, stacked: bool = False
    ) -> None:
        """A third of the width: values over time."""
        custom: dict[str, Any] = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10}
        if stacked:
            custom |= {"fillOpacity": 40, "stacking": {"mode": "normal", "group": "A"}}
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
        limits = {"min": 0, **({"max": 1} if unit == "percentunit" else {})}
        self._panel("timeseries", title, unit, queries, text, options, (8, 8), custom, limits)

    def number(self, title: str, unit: str, query: str, text: str, *, red_from: float = 0) -> None:
        """A sixth of the width: one value now."""
        steps: list[dict[str, Any]] = [{"value": None, "color": "green"}]
        if red_from:
            steps.append({"value": red_from, "color": "red"})
        options = {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "area",
            "justifyMode": "auto",
            "orientation": "auto",
            "textMode": "auto",
        }
        thresholds = {"thresholds": {"mode": "absolute", "steps": steps}}
        self._panel("stat", title, unit, [(query, "")], text, options, (4, 4), {}, thresholds)

    def _panel(
        self,
        kind: str,
        title: str,
        unit: str,
        queries: list[Query],
        text: str,
        options: dict[str, Any],
        size: tuple[int, int],
        custom: dict[str, Any],
        defaults: dict[str, Any],
    ) -> None:
        targets = [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": expression,
                "legendFormat": legend or "__auto",
                "range": True,
            }
            for index, (expression, legend) in enumerate(queries)
        ]
        panel = {
            "type": kind,
            "title": title,
            "description": text,
            "datasource": DATASOURCE,
            "targets": targets,
            "options": options,
            "fieldConfig": {
                "defaults": {"unit": unit, "custom": custom, **defaults},
                "overrides": [],
            },
        }
        self._add(panel, *size)

    def _add(self, panel: dict[str, Any], width: int, height: int) -> None:
        if self._x + width > GRID_COLUMNS:
            self._next_line()
        position = {"h": height, "w": width, "x": self._x, "y": self._y}
        self.panels.append({"id": len(self.panels) + 1, "gridPos": position, **panel})
        self._x += width
        self._height = max(self._height, height)

    def _next_line(self) -> None:
        self._y += self._height
        self._x = self._height = 0


def variables() -> list[dict[str, Any]]:
    """The data source, and which jobs and replicas are shown."""
    found: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    ]
    for name, query in (
        ("job", "label_values(qwen3_a8w8_build_info, job)"),
        ("replica", 'label_values(qwen3_a8w8_replica_info{job=~"$job"}, replica)'),
    ):
        found.append(
            {
                "name": name,
                "label": name.capitalize(),
                "type": "query",
                "datasource": DATASOURCE,
                "query": {"query": query, "refId": name},
                # Replicas come and go: ask again whenever the time range changes.
                "refresh": 2,
                "sort": 1,
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
                "current": {"text": ["All"], "value": ["$__all"]},
            }
        )
    return found


def add_panels(board: Dashboard) -> None:
    """All panels."""
    requests = ingresses("http_requests_total", 'method="POST"')
    failed = ingresses("http_requests_total", 'method="POST"', 'status=~"5.."')
    board.row("Now")
    board.number(
        "Replicas",
        "short",
        f"count({engines('replica_info')})",
        "Engines that report about themselves.",
    )
    board.number("Requests", "reqps", rate(requests), "POST requests that ended, per second.")
    board.number(
        "Failed",
        "percentunit",
        f"({rate(failed)} or vector(0)) / {rate(requests)}",
        "Share of POST requests with a status from 500; a full queue (503) counts.",
        red_from=0.01,
    )
    board.number(
        "TTFT p95",
        "s",
        quantiles(engines("time_to_first_token_seconds_bucket"))[1][0],
        "Time to first token, from a sequence's arrival at its engine.",
    )
    board.number(
        "Waiting",
        "short",
        f"sum({engines('num_requests_waiting')})",
        "Sequences without KV blocks.",
        red_from=32,
    )
    board.number(
        "KV cache",
        "percentunit",
        f"max({engines('kv_cache_usage_perc')})",
        "Share of KV blocks in use, of the fullest replica.",
        red_from=0.95,
    )

    board.row("Traffic")
    board.graph(
        "Responses by status",
        "reqps",
        [(rate(ingresses("http_requests_total"), "status"), "{{status}}")],
        "499: the client left before the response began.",
        stacked=True,
    )
    board.graph(
        "Tokens",
        "short",
        [
            (rate(engines("prompt_tokens_total")), "prompt"),
            (rate(engines("prefix_cache_hits_total")), "of them from the prefix cache"),
            (rate(engines("generation_tokens_total")), "generated"),
        ],
        "Tokens per second.",
    )
    board.graph(
        "Ends of sequences",
        "ops",
        [(rate(engines("request_success_total"), "finished_reason"), "{{finished_reason}}")],
        "abort: the client left, or a stop string ended the text.",
        stacked=True,
    )
    board.graph(
        "Sequences",
        "short",
        [
            (f"sum({engines('num_requests_running')})", "running"),
            (f"sum({engines('num_requests_waiting')})", "waiting"),
            (f"sum({ingresses('http_requests_in_flight')})", "HTTP requests in flight"),
        ],
        "Running sequences have KV blocks, waiting ones don't.",
    )
    board.graph(
        "Prompt tokens",
        "short",
        quantiles(engines("request_prompt_tokens_bucket")),
        "Of finished sequences.",
    )
    board.graph(
        "Generated tokens",
        "short",
        quantiles(engines("request_generation_tokens_bucket")),
        "Of finished sequences.",
    )

    board.row("Latency")
    for title, name, text in (
        ("Time to first token", "time_to_first_token", "From a sequence's arrival at its engine."),
        ("Between tokens", "inter_token_latency", "Tokens of one step share its time evenly."),
        (
            "End to end",
            "e2e_request_latency",
            "From a sequence's arrival at its engine to its end.",
        ),
        ("In the queue", "request_queue_time", "From arrival to the first KV blocks."),
        ("Prefill", "request_prefill_time", "From the first KV blocks to the first token."),
    ):
        board.graph(title, "s", quantiles(engines(f"{name}_seconds_bucket")), text)
    board.graph(
        "HTTP, p95 by route",
        "s",
        quantiles(ingresses("http_request_duration_seconds_bucket"), "handler"),
        "From a request's arrival at the ingress to the end of its response, of a stream too.",
    )

    board.row("Engines")
    board.graph(
        "Rows per decode dispatch",
        "short",
        [
            (
                f"{rate(engines('decode_rows_total'), 'replica')} / "
                f"{rate(engines('decode_batches_total'), 'replica')}",
                "{{replica}}",
            )
        ],
        "Live rows; 16 is a full batch. A step costs nearly the same however many rows it has.",
    )
    board.graph(
        "Decode dispatches by batch size",
        "ops",
        [(rate(engines("decode_batches_total"), "batch_size"), "B{{batch_size}}")],
        "Per second.",
        stacked=True,
    )
    board.graph(
        "Device busy",
        "percentunit",
        [
            (rate(engines("device_time_seconds_total"), "replica"), "{{replica}}"),
            (
                rate(engines("host_gap_seconds_total"), "replica"),
                "waiting for the host {{replica}}",
            ),
        ],
        "Share of the time that the device computes, or waits although there is work.",
    )
    board.graph(
        "KV cache in use",
        "percentunit",
        [(engines("kv_cache_usage_perc"), "{{replica}}")],
        "At 1 new sequences wait, or the lowest rank is preempted.",
    )
    board.graph(
        "Prefix cache hits",
        "percentunit",
        [
            (
                f"{rate(engines('prefix_cache_hits_total'), 'replica')} / "
                f"{rate(engines('prefix_cache_queries_total'), 'replica')}",
                "{{replica}}",
            )
        ],
        "Share of prompt tokens whose KV blocks were in the cache.",
    )
    board.graph(
        "Accepted draft tokens",
        "percentunit",
        [
            (
                f"{rate(engines('spec_decode_num_accepted_tokens_total'))} / "
                f"{rate(engines('spec_decode_num_draft_tokens_total'))}",
                "accepted",
            )
        ],
        "Share of draft tokens that the model agreed with; empty without speculation.",
    )

    board.row("Incidents and resources")
    board.graph(
        "Preemptions, failed steps, failovers",
        "short",
        [
            (f"sum (increase({engines('num_preemptions_total')}{RATE}))", "preemptions"),
            (f"sum (increase({engines('failed_steps_total')}{RATE}))", "failed steps"),
            (
                f"sum by (outcome) (increase({ingresses('failovers_total')}{RATE}))",
                "failovers {{outcome}}",
            ),
        ],
        "docs/operations.md says what each of them means.",
    )
    board.graph(
        "Memory of the engines",
        "bytes",
        [(engines("process_resident_memory_bytes"), "{{process}} {{replica}}")],
        "Resident; mapped weights count in each process that maps them.",
    )
    board.graph(
        "Memory of the ingress processes",
        "bytes",
        [(ingresses("ingress_resident_memory_bytes"), "{{ingress}}")],
        "Resident.",
    )


def text() -> str:
    """The whole file."""
    board = Dashboard()
    add_panels(board)
    whole = {
        "uid": "qwen3-a8w8",
        "title": "qwen3-a8w8",
        "description": "Requests, latency and engines of qwen3-a8w8; metrics are in docs/api.md.",
        "tags": ["qwen3-a8w8", "llm"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "templating": {"list": variables()},
        "annotations": {"list": []},
        "panels": board.panels,
    }
    return json.dumps(whole, indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())
    print(f"wrote {PATH}")
