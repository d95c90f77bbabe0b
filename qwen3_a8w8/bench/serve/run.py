"""A run from beginning to end: prepare, warm up, load, count, compare."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import aiohttp
import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from qwen3_a8w8.bench.serve import server
from qwen3_a8w8.bench.serve.arrivals import arrival_times_s, request_rates
from qwen3_a8w8.bench.serve.client import Load, make_body, open_session
from qwen3_a8w8.bench.serve.dataset import SampleRequest, load_requests
from qwen3_a8w8.bench.serve.metrics import summarize
from qwen3_a8w8.bench.serve.settings import ServeBench, key_values
from qwen3_a8w8.bench.serve.stream import RequestOutput
from qwen3_a8w8.bench.serve.text_codec import TextCodec, choose_codec
from qwen3_a8w8.errors import ConfigError

PROGRESS_PERIOD_S = 0.5
READY_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Run:
    """What a run has given.

    Attributes:
        result: vLLM's keys, `engine` and those of draft tokens.
        outputs: one per request.
        requests: that were sent.
        version: what a server of ours says about itself, or None.
        origin: where the server has its model from, as it or the user says, or None.
        prompt_token_ids: of the requests, if the engine is to run them too; else empty.
    """

    result: dict[str, Any]
    outputs: list[RequestOutput]
    requests: list[SampleRequest]
    version: dict[str, Any] | None
    origin: str | None
    prompt_token_ids: list[tuple[int, ...]]


async def run_load(bench: ServeBench, console: Console) -> Run:
    """Sends the load and gives its figures.

    Args:
        bench: the settings.
        console: for progress.

    Raises:
        ConfigError: the server can't be reached, or doesn't serve the model; the dataset can't be
            used.
    """
    date = datetime.now().strftime("%Y%m%d-%H%M%S")
    url, path = bench.server.url, bench.server.path
    async with open_session(bench.server.headers()) as session:
        await _wait_until_up(session, bench)
        model, root = await _model(session, bench)
        name = bench.server.served_model_name or model
        version = await server.description(session, url)
        origin = root or bench.server.model
        if bench.result.compare_engine and (version is None or origin is None):
            raise ConfigError(
                f"--compare-engine: {url} isn't a server of ours that names its model's directory; "
                "give --model DIR and --served-model-name, or leave --compare-engine out"
            )
        codec = await choose_codec(session, url, name, tokenizer=bench.server.tokenizer, root=root)
        with console.status("making prompts"):
            requests = await load_requests(
                bench.dataset, codec, is_chat=bench.server.backend == "openai-chat"
            )
        # The engine alone starts with an empty prefix cache; with a salt of its own, so does this.
        salt = {"cache_salt": uuid.uuid4().hex} if bench.result.compare_engine else {}
        bodies = [make_body(bench, name, request, salt) for request in requests]
        await _warm_up(session, bench, f"{url}{path}", bodies[0], requests[0])
        before = await server.counters(session, url)
        load = Load(session, f"{url}{path}", bench.traffic.max_concurrency)
        arrivals_s = arrival_times_s(
            bench.traffic, len(bodies), np.random.default_rng(bench.dataset.seed)
        )
        gc.collect()
        gc.freeze()  # what was made so far isn't looked at again while latencies are measured
        begin = datetime.now()
        begin_s = time.perf_counter()
        with _progress(console, load, len(bodies), is_shown=not bench.result.disable_tqdm):
            recordings = await load.send_all(bodies, arrivals_s.tolist())
        duration_s = time.perf_counter() - begin_s
        gc.unfreeze()
        grown = server.growth(before, await server.counters(session, url))
        token_ids: list[tuple[int, ...]] = []
        if bench.result.compare_engine:
            is_chat = bench.server.backend == "openai-chat"
            prompts = [request.prompt for request in requests]
            token_ids = await server.prompt_tokens(session, url, name, prompts, is_chat=is_chat)
    outputs = [
        recording.output(request.prompt_len)
        for recording, request in zip(recordings, requests, strict=True)
    ]
    result = {
        **_description(bench, date, model, codec),
        **summarize(
            outputs,
            duration_s,
            metrics=bench.result.metrics,
            percentiles=bench.result.percentiles,
            goodput_ms=bench.result.goodput_ms,
        ),
        **_rate_changes(bench, arrivals_s.tolist(), begin),
        **server.spec_decode_figures(grown),
    }
    if (engine := server.engine_figures(grown)) is not None:
        result["engine"] = engine
    return Run(result, outputs, requests, version, origin, token_ids)


def _description(bench: ServeBench, date: str, model: str, codec: TextCodec) -> dict[str, Any]:
    """The keys that say what was run."""
    traffic = bench.traffic
    is_unlimited = traffic.request_rate == float("inf")
    described = {
        "date": date,
        "endpoint_type": bench.server.backend,
        "backend": bench.server.backend,
        "label": bench.result.label,
        "model_id": model,
        "tokenizer_id": codec.name,
        "num_prompts": bench.dataset.num_prompts,
        **key_values("--metadata", bench.result.metadata),
        "request_rate": "inf" if is_unlimited else traffic.request_rate,
        "burstiness": traffic.burstiness,
        "max_concurrency": traffic.max_concurrency,
    }
    if traffic.ramp_up_strategy is not None:
        described |= {
            "ramp_up_strategy": traffic.ramp_up_strategy,
            "ramp_up_start_rps": traffic.ramp_up_start_rps,
            "ramp_up_end_rps": traffic.ramp_up_end_rps,
        }
    return described


def _rate_changes(
    bench: ServeBench, arrivals_s: Sequence[float], begin: datetime
) -> dict[str, list[dict[str, Any]]]:
    """When a ramp-up reached each whole number of requests per second."""
    if bench.traffic.ramp_up_strategy is None:
        return {}
    changes: list[dict[str, Any]] = []
    for rate, arrival_s in zip(
        request_rates(bench.traffic, len(arrivals_s)), arrivals_s, strict=True
    ):
        last = changes[-1]["rps"] if changes else (bench.traffic.ramp_up_start_rps or 0) - 1
        moment = datetime.fromtimestamp(begin.timestamp() + arrival_s).isoformat()
        changes += [{"rps": rps, "timestamp": moment} for rps in range(last + 1, int(rate) + 1)]
    return {"rps_change_events": changes}


async def _model(session: aiohttp.ClientSession, bench: ServeBench) -> tuple[str, str | None]:
    """The model's name, and where the server has it from."""
    url = bench.server.url
    if bench.server.model is None:
        first = await server.first_model(session, url)
        return first.name, first.root
    with contextlib.suppress(ConfigError):  # a server without /v1/models is measured as well
        first = await server.first_model(session, url)
        if first.name == (bench.server.served_model_name or bench.server.model):
            return bench.server.model, first.root
    return bench.server.model, None


async def _wait_until_up(session: aiohttp.ClientSession, bench: ServeBench) -> None:
    """Waits for a server that lists its models.

    Raises:
        ConfigError: it doesn't within `ready_check_timeout_sec`.
    """
    deadline_s = time.monotonic() + bench.server.ready_check_timeout_sec
    while bench.server.ready_check_timeout_sec:
        try:
            await server.first_model(session, bench.server.url)
            return
        except ConfigError:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(READY_RETRY_S)


async def _warm_up(
    session: aiohttp.ClientSession, bench: ServeBench, url: str, body: bytes, request: SampleRequest
) -> None:
    load = Load(session, url, bench.traffic.max_concurrency)
    count = bench.traffic.num_warmups
    recordings = await load.send_all([body] * count, [0.0] * count)
    for recording in recordings:
        if error := recording.output(request.prompt_len).error:
            raise ConfigError(f"a warm-up request to {url} failed: {error}")


@contextlib.contextmanager
def _progress(console: Console, load: Load, total: int, *, is_shown: bool) -> Iterator[None]:
    """Shows what is done, in flight and failed while the block runs."""
    if not is_shown:
        yield
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[state]}"),
    )
    # It draws itself twice a second in this loop: a thread would take the lock at any moment.
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("requests", total=total, state="")

        def show() -> None:
            state = f"{load.num_running} in flight, {load.num_reads} chunks"
            if load.num_failed:
                state += f", {load.num_failed} failed"
            progress.update(task, completed=load.num_done, state=state, refresh=True)

        async def repeat() -> None:
            while True:
                show()
                await asyncio.sleep(PROGRESS_PERIOD_S)

        drawing = asyncio.get_running_loop().create_task(repeat())
        try:
            yield
        finally:
            drawing.cancel()
            show()
