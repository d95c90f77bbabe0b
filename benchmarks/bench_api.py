"""Measures the overhead of the API around an engine that emits tokens at once.

Two parts. `asgi`: the routes under uvicorn in a process on one core, streamed to a client on
another. `serve`: a whole application on Ray Serve, hop by hop:

    engine->router    the runner in its actor, read from the router in this process
    replica->ingress  a replica's stream, read over a Serve handle in this process
    ingress->client   everything: replica, ingress, proxy, streamed HTTP; once behind Serve's
                      Python proxy and once behind HAProxy

Tokens per second at concurrency 16, time to first token (median) at concurrency 1, both with
pending tokens sent as one message (coalescing, as in the application) and with a message for
every token.

    python benchmarks/bench_api.py --json api.json

Goals on a quiet machine: asgi at least 5,000 tokens/s without coalescing; ingress->client at
concurrency 1 a first token within 12 ms behind the proxy that `qwen3-a8w8 serve` uses.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that this process and Ray's find `benchmarks`

from benchmarks.instant_engine import InstantEngine, make_capabilities  # noqa: E402
from deployments.local.ports import free_port  # noqa: E402
from qwen3_a8w8.bench.provenance import cpu_model, git_commit  # noqa: E402
from qwen3_a8w8.checkpoint.resolve import resolve_model  # noqa: E402
from qwen3_a8w8.config import EngineConfig  # noqa: E402
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent  # noqa: E402
from qwen3_a8w8.engine.sampling_params import SamplingParams  # noqa: E402

MODEL = "demo"
FACTORY = "benchmarks.instant_engine:load_runner"
CONCURRENCY = 16
PACKAGES = ("ray", "fastapi", "starlette", "uvicorn", "uvloop", "httptools", "pydantic")

OpenStream = Callable[[EngineRequest], AsyncIterator[TokenEvent]]


def run_client(port: int, concurrency: int, num_tokens: int, rounds: int) -> dict[str, Any]:
    """Figures of `stream_client.py`, run in a separate process."""
    command = [sys.executable, str(ROOT / "benchmarks" / "stream_client.py")]
    for name, value in (
        ("port", port),
        ("concurrency", concurrency),
        ("num-tokens", num_tokens),
        ("rounds", rounds),
    ):
        command += [f"--{name}", str(value)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    figures: dict[str, Any] = json.loads(output)
    return figures


def serve_asgi(port: int, has_backlog: bool, cores: set[int]) -> None:
    """The server process of part `asgi`."""
    import uvicorn

    from deployments.http.api import build_api
    from deployments.http.security import add_security
    from deployments.ingress.service import ModelService
    from deployments.settings import HttpSettings, SecuritySettings

    os.sched_setaffinity(0, cores)
    directory = resolve_model(MODEL)
    http = HttpSettings()
    service = ModelService(
        MODEL,
        directory,
        InstantEngine(directory, has_backlog=has_backlog),
        decode_batch_sizes=(1, 16),
    )
    app = build_api(service, max_body_bytes=http.max_body_bytes)
    add_security(app, SecuritySettings(), http)
    uvicorn.run(app, port=port, log_level="error")


@contextlib.contextmanager
def running_asgi(has_backlog: bool) -> Iterator[int]:
    """The server on the last core, this process and its clients on the others."""
    cores = sorted(os.sched_getaffinity(0))
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(
        target=serve_asgi, args=(port, has_backlog, {cores[-1]}), daemon=True
    )
    process.start()
    try:
        deadline_s = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if time.monotonic() > deadline_s or not process.is_alive():
                raise SystemExit("the server hasn't started")
            time.sleep(0.1)
        os.sched_setaffinity(0, set(cores[:-1] or cores))
        yield port
    finally:
        os.sched_setaffinity(0, set(cores))
        process.terminate()
        process.join()


def measure_client(hop: str, coalescing: bool, port: int, num_tokens: int) -> list[dict[str, Any]]:
    """Both loads of a client over HTTP."""
    results = []
    for concurrency, tokens, rounds in ((1, 16, 30), (CONCURRENCY, num_tokens, 3)):
        figures = run_client(port, concurrency, tokens, rounds)
        figures["tokens_per_message"] = figures.pop("tokens_per_frame")
        results.append(make_result(hop, coalescing, concurrency, figures))
    return results


def make_result(
    hop: str, coalescing: bool | None, concurrency: int, figures: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": "api",
        "hop": hop,
        "coalescing": coalescing,
        "concurrency": concurrency,
        **figures,
    }


def measure_asgi(num_tokens: int, coalescings: Sequence[bool]) -> list[dict[str, Any]]:
    """The routes under uvicorn."""
    results = []
    for coalescing in coalescings:
        with running_asgi(has_backlog=coalescing) as port:
            results += measure_client("asgi", coalescing, port, num_tokens)
    return results


async def read_streams(open_stream: OpenStream, concurrency: int, num_tokens: int, rounds: int):
    """What `stream_client.py` measures, of streams of token events."""
    sampling = SamplingParams(max_tokens=num_tokens, seed=1, ignore_eos=True)
    num_messages = 0
    firsts_s: list[float] = []

    async def read_one(index: int) -> None:
        nonlocal num_messages
        prompt = (1000 + index, *range(1000, 1020))
        begin_s = time.perf_counter()
        is_first = True
        async for event in open_stream(EngineRequest(prompt, sampling)):
            if event.token_ids:
                num_messages += 1
                if is_first:
                    is_first = False
                    firsts_s.append(time.perf_counter() - begin_s)

    async def wave() -> float:
        begin_s = time.perf_counter()
        await asyncio.gather(*(read_one(index) for index in range(concurrency)))
        return time.perf_counter() - begin_s

    await wave()
    num_messages = 0
    firsts_s.clear()
    seconds = [await wave() for _ in range(rounds)]
    return {
        "tokens_per_s": concurrency * num_tokens / statistics.median(seconds),
        "ttft_s": statistics.median(firsts_s),
        "tokens_per_message": concurrency * num_tokens * rounds / num_messages,
    }


async def measure_streams(
    hop: str, coalescing: bool | None, open_stream: OpenStream, num_tokens: int
) -> list[dict[str, Any]]:
    """Both loads of a reader of token events."""
    return [
        make_result(
            hop,
            coalescing,
            concurrency,
            await read_streams(open_stream, concurrency, tokens, rounds),
        )
        for concurrency, tokens, rounds in ((1, 32, 40), (CONCURRENCY, num_tokens, 5))
    ]


async def measure_router(num_tokens: int) -> list[dict[str, Any]]:
    """The runner in an actor, the batch router here. Nothing piles up: the reader is next to it."""
    from deployments.engine.batch_router import BatchRouter
    from deployments.engine.npu_actor import RemoteNpuActor
    from deployments.engine.step_channel import StepChannel
    from qwen3_a8w8.engine.core import EngineCore

    config = EngineConfig()
    actor = RemoteNpuActor.options(num_cpus=0).remote(MODEL, config, FACTORY)
    await actor.start.remote()
    channel = await StepChannel.connect(await actor.listen.remote())
    router = BatchRouter(EngineCore(make_capabilities(resolve_model(MODEL)), config), channel.send)
    channel.start(router.take)
    try:
        return await measure_streams("engine->router", None, router.submit, num_tokens)
    finally:
        router.close()
        await channel.close()
        await actor.close.remote()


def measure_serve(num_tokens: int, coalescings: Sequence[bool]) -> list[dict[str, Any]]:
    """A whole application behind each proxy, with and without coalescing.

    The hops that no proxy is part of are measured once.
    """
    from ray import serve

    from benchmarks.instant_engine import UncoalescedReplica
    from deployments import app
    from deployments.local.application import local_application
    from deployments.local.haproxy import DEFAULT_HTTP_PROXY, HttpProxy
    from deployments.settings import AppSettings

    settings = AppSettings(model=MODEL, runner_factory=FACTORY)
    proxies: list[HttpProxy] = ["python"]
    if DEFAULT_HTTP_PROXY != "python":
        proxies.append(DEFAULT_HTTP_PROXY)
    results: list[dict[str, Any]] = []
    replica = app.EngineReplica
    for coalescing in coalescings:
        app.EngineReplica = replica if coalescing else UncoalescedReplica  # type: ignore[misc]
        for proxy in proxies:
            port = free_port()
            with local_application(settings, port=port, http_proxy=proxy):
                if coalescing is coalescings[0] and proxy is proxies[0]:
                    results += asyncio.run(measure_router(num_tokens))
                if proxy is proxies[0]:
                    engine = serve.get_deployment_handle(
                        app.ENGINE_DEPLOYMENT, app.APPLICATION_NAME
                    )
                    results += asyncio.run(
                        measure_streams(
                            "replica->ingress",
                            coalescing,
                            engine.options(stream=True).start_stream.remote,
                            num_tokens,
                        )
                    )
                results += measure_client(f"ingress->client, {proxy}", coalescing, port, num_tokens)
    app.EngineReplica = replica  # type: ignore[misc]
    return results


def print_table(results: list[dict[str, Any]]) -> None:
    names = {True: "on", False: "off", None: "-"}
    print(
        f"{'hop':<26}{'coalescing':<12}{'streams':>8}{'tokens/s':>11}{'TTFT ms':>9}{'tok/msg':>9}"
    )
    for result in results:
        print(
            f"{result['hop']:<26}{names[result['coalescing']]:<12}{result['concurrency']:>8}"
            f"{result['tokens_per_s']:>11,.0f}{result['ttft_s'] * 1e3:>9.2f}"
            f"{result['tokens_per_message']:>9.2f}"
        )


def main() -> None:
    """Measures, prints a table, writes JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=("asgi", "serve"), action="append", help="default: both")
    parser.add_argument("--coalescing", choices=("on", "off"), help="default: both")
    parser.add_argument("--num-tokens", type=int, default=256, help="per stream of sixteen")
    parser.add_argument("--json", type=Path, help="file to write")
    args = parser.parse_args()
    coalescings = [args.coalescing == "on"] if args.coalescing else [True, False]
    results: list[dict[str, Any]] = []
    for part, measure in (("asgi", measure_asgi), ("serve", measure_serve)):
        if part in (args.part or ("asgi", "serve")):
            results += measure(args.num_tokens, coalescings)
    print_table(results)
    if args.json:
        provenance = {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "commit": git_commit(ROOT),
            "python": platform.python_version(),
            "packages": {name: version(name) for name in PACKAGES},
            "cpu": cpu_model(),
            "num_cores": len(os.sched_getaffinity(0)),
            "serve_environment": {
                name: value for name, value in os.environ.items() if name.startswith("RAY_SERVE_")
            },
        }
        content = {"provenance": provenance, "machine": {}, "results": results}
        args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
