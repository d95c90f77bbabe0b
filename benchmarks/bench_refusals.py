"""Measures what a refusal costs: many completions at once against a short queue.

Starts the application with the demo model, sends the requests with `burst_client.py`, several
times, and prints for each burst the slowest refusal and the slowest answer in milliseconds and
their ratio.

    python benchmarks/bench_refusals.py --json refusals.json

Goal, on two cores that the client shares: every one of 500 completions that is refused is so
within a second, and every refusal has a Retry-After.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that this process and Ray's find `benchmarks`

from deployments.local.ports import free_port  # noqa: E402
from qwen3_a8w8.bench.provenance import cpu_model, git_commit  # noqa: E402


def run_burst(port: int, num_requests: int, num_tokens: int) -> list[dict[str, Any]]:
    """The answers of one burst."""
    command = [sys.executable, str(ROOT / "benchmarks" / "burst_client.py")]
    options = {"port": port, "num-requests": num_requests, "num-tokens": num_tokens}
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
    answers: list[dict[str, Any]] = json.loads(output)
    return answers


def summary(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of one burst."""
    accepted = [answer["seconds"] for answer in answers if answer["status"] == 200]
    refusals = [answer for answer in answers if answer["status"] == 503]
    if len(accepted) + len(refusals) != len(answers) or not accepted:
        raise SystemExit(f"other answers than 200 and 503: {answers}")
    if any(answer["retry_after"] is None for answer in refusals):
        raise SystemExit("a refusal has no Retry-After")
    refused = [answer["seconds"] for answer in refusals]
    return {
        "name": "refusals",
        "num_requests": len(answers),
        "num_refused": len(refused),
        "refused_median_s": statistics.median(refused) if refused else None,
        "refused_max_s": max(refused, default=None),
        "accepted_median_s": statistics.median(accepted),
        "accepted_max_s": max(accepted),
        "refused_to_accepted_max_ratio": max(refused) / max(accepted) if refused else None,
    }


def main() -> None:
    """Measures, prints a table, writes JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-requests", type=int, default=500)
    parser.add_argument("--num-tokens", type=int, default=20)
    parser.add_argument("--max-queued-requests", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--port", type=int, help="of a server that runs already")
    parser.add_argument("--http-proxy", choices=("haproxy", "python"))
    parser.add_argument("--json", type=Path, help="file to write")
    args = parser.parse_args()

    def measure(port: int) -> list[dict[str, Any]]:
        run_burst(port, 16, 1)  # the first requests of a process are slower
        results = []
        for _ in range(args.rounds):
            result = summary(run_burst(port, args.num_requests, args.num_tokens))
            results.append(result)
            print(
                f"{result['num_refused']:>4} of {result['num_requests']} refused, "
                f"the slowest after {(result['refused_max_s'] or 0) * 1e3:>6.0f} ms "
                f"(median {(result['refused_median_s'] or 0) * 1e3:>6.0f} ms); answers after up to "
                f"{result['accepted_max_s'] * 1e3:>6.0f} ms; "
                f"ratio {result['refused_to_accepted_max_ratio'] or 0:.2f}",
                flush=True,
            )
        return results

    if args.port:
        results = measure(args.port)
    else:
        from deployments.local.application import local_application
        from deployments.local.haproxy import DEFAULT_HTTP_PROXY
        from deployments.settings import AppSettings

        settings = AppSettings(
            model="demo", engine={"max_queued_requests": args.max_queued_requests}
        )
        port = free_port()
        proxy = args.http_proxy or DEFAULT_HTTP_PROXY
        with local_application(settings, port=port, http_proxy=proxy):
            results = measure(port)
    if args.json:
        provenance = {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "commit": git_commit(ROOT),
            "cpu": cpu_model(),
            "num_cores": len(os.sched_getaffinity(0)),
            "load_before": os.getloadavg(),
        }
        content = {"provenance": provenance, "machine": {}, "results": results}
        args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
