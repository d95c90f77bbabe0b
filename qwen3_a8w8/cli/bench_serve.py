"""`qwen3-a8w8 bench serve`: load on a server, with the options of `vllm bench serve`."""

from __future__ import annotations

import asyncio
import warnings
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from typer.core import TyperCommand

from qwen3_a8w8.bench.serve.dataset_settings import DatasetSettings
from qwen3_a8w8.bench.serve.settings import (
    ResultSettings,
    ServeBench,
    ServerSettings,
    TrafficSettings,
)
from qwen3_a8w8.cli import options
from qwen3_a8w8.errors import ConfigError

LISTS = ("--goodput", "--metadata", "--header")


class ListOptions(TyperCommand):
    """Takes several values after an option, as vLLM's parser does: `--goodput ttft:100 tpot:20`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeats the option before each of its values."""
        repeated: list[str] = []
        flag = None
        for argument in args:
            if argument.startswith("-"):
                flag = argument if argument in LISTS else None
                if flag is None:
                    repeated.append(argument)
            elif flag is not None:
                repeated += [flag, argument]
            else:
                repeated.append(argument)
        return super().parse_args(ctx, repeated)


@options.expanded
def serve(
    *,
    server: ServerSettings,
    dataset: DatasetSettings,
    traffic: TrafficSettings,
    result: ResultSettings,
) -> None:
    """Measure a running OpenAI-compatible server under load, as its clients see it."""
    bench = ServeBench(server, dataset, traffic, result)
    _ = server.path, server.headers()

    from qwen3_a8w8.bench.provenance import environment
    from qwen3_a8w8.bench.report import write_json
    from qwen3_a8w8.bench.serve import engine_replay, report  # imports torch
    from qwen3_a8w8.bench.serve.run import run_load

    console = Console(stderr=True)
    if result.compare_engine:
        engine_replay.check_comparable(bench)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: console.print(
            f"warning: {message}", style="yellow", markup=False
        )
        run = asyncio.run(run_load(bench, console))
    figures: dict[str, Any] = dict(run.result)
    if result.compare_engine:
        with console.status("running the requests on the engine alone"):
            figures["overhead"] = engine_replay.compare(bench, run)
    with console.status("measuring the machine"):
        machine = _machine(server.url, run.version)
    source = {**environment(figures["model_id"]), "server": run.version, "url": server.url}
    report.print_result(Console(), bench, figures)
    kept = figures if result.save_detailed else report.without_details(figures)
    if result.save_result or result.append_result:
        path = report.result_path(bench, figures["model_id"], figures["date"])
        content = {**kept, "provenance": source, "machine": machine}
        report.save_result(path, content, is_appended=result.append_result)
        console.print(f"result: {path}", markup=False)
    if result.json_file is not None:
        write_json(result.json_file, source, machine, [{"bench": "serve", **kept}])
    if result.plot is not None:
        report.plot(result.plot, run.outputs)
    _check(run.outputs)


def _machine(url: str, version: dict[str, Any] | None) -> dict[str, float]:
    """Limits of the machine if the server runs on this one and is ours; else empty."""
    if version is None or not _is_here(url):
        return {}
    from qwen3_a8w8.bench.machine import Machine
    from qwen3_a8w8.kernels.cpu.backend import CpuBackend
    from qwen3_a8w8.runner.sizing import free_host_memory_bytes

    device = version.get("device") or {}
    backend = CpuBackend(isa=device.get("isa"), num_threads=device.get("threads"))
    try:
        return Machine(backend, free_host_memory_bytes() // 2).as_dict()
    finally:
        backend.close()


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check(outputs: Any) -> None:
    """Ends with an error if no request succeeded.

    Raises:
        ConfigError: the first request's error.
    """
    errors = [output.error for output in outputs if not output.has_succeeded]
    if len(errors) == len(outputs):
        raise ConfigError(f"all {len(outputs)} requests failed, the first with: {errors[0]}")
