"""Sends requests and records what comes back, and when; interprets nothing while it runs.

aiohttp, because its parser is compiled: the client's own time is a part of every latency
(ADR 36). Bodies are encoded before the load starts and
responses are parsed after it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from qwen3_a8w8.bench.serve.dataset import SampleRequest
from qwen3_a8w8.bench.serve.settings import ServeBench
from qwen3_a8w8.bench.serve.stream import Read, RequestOutput, read_output

REQUEST_TIMEOUT_S = 6 * 3600.0
_NO_STATUS = 0


def open_session(headers: dict[str, str]) -> aiohttp.ClientSession:
    """A session with as many connections as requests are in flight.

    The key in $OPENAI_API_KEY is sent, unless `headers` has an Authorization of its own.
    """
    key = os.environ.get("OPENAI_API_KEY")
    own = {"Authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
        timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
        headers={**own, **headers},
    )


def make_body(
    bench: ServeBench, model: str, request: SampleRequest, more: Mapping[str, Any]
) -> bytes:
    """The JSON of a streamed request.

    Fields that aren't given aren't sent, so that the server's own defaults hold.

    Args:
        bench: the settings.
        model: its name at the server.
        request: prompt and length.
        more: further fields; those of `--extra-body` take precedence.
    """
    body: dict[str, Any] = {"model": model}
    if bench.server.backend == "openai-chat":
        content = [{"type": "text", "text": request.prompt}]
        body |= {
            "messages": [{"role": "user", "content": content}],
            "max_completion_tokens": request.output_len,
        }
        if bench.traffic.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": bench.traffic.logprobs}
    else:
        body |= {"prompt": request.prompt, "max_tokens": request.output_len}
        if bench.traffic.logprobs is not None:
            body["logprobs"] = bench.traffic.logprobs
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    if bench.ignores_eos:
        body["ignore_eos"] = True
    body |= dict(more) | bench.traffic.sampling_fields | bench.traffic.extra_fields
    return json.dumps(body).encode()


@dataclass(slots=True)
class Recording:
    """A request on its way, as raw as it came.

    Attributes:
        due_s: when it was to be sent.
        start_s: when it was, after `max_concurrency` let it.
        status: of the response; 0 without one.
        reads: the response's body.
        error: what went wrong below HTTP, or "".
    """

    due_s: float
    start_s: float = 0.0
    status: int = _NO_STATUS
    reads: list[Read] = field(default_factory=list)
    error: str = ""

    def output(self, prompt_len: int) -> RequestOutput:
        """What it gave."""
        queue_s = self.start_s - self.due_s
        if self.error:
            return RequestOutput(self.start_s, prompt_len, error=self.error, queue_s=queue_s)
        if self.status != 200:
            text = b"".join(data for _, data in self.reads).decode("utf-8", "replace")
            error = f"HTTP {self.status}: {text[:500]}"
            return RequestOutput(self.start_s, prompt_len, error=error, queue_s=queue_s)
        return read_output(self.start_s, self.reads, prompt_len=prompt_len, queue_s=queue_s)


class Load:
    """Requests to one URL, at most `max_concurrency` of them in flight.

    Attributes:
        num_running: requests in flight.
        num_done: those that have ended.
        num_failed: those of them without a status 200, or cut off.
        num_reads: reads of bodies, as a sign of life.
    """

    def __init__(
        self, session: aiohttp.ClientSession, url: str, max_concurrency: int | None
    ) -> None:
        self._session = session
        self._url = url
        self._slots: contextlib.AbstractAsyncContextManager[Any] = (
            contextlib.nullcontext()
            if max_concurrency is None
            else asyncio.Semaphore(max_concurrency)
        )
        self.num_running = self.num_done = self.num_failed = self.num_reads = 0

    async def send(self, body: bytes) -> Recording:
        """Sends one request and waits for its end; whatever goes wrong is in the recording."""
        recording = Recording(due_s=time.perf_counter())
        async with self._slots:
            self.num_running += 1
            recording.start_s = time.perf_counter()
            try:
                await self._exchange(body, recording)
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                recording.error = f"{type(error).__name__}: {error}"
            self.num_running -= 1
            self.num_done += 1
            self.num_failed += bool(recording.error) or recording.status != 200
        return recording

    async def send_all(
        self, bodies: Sequence[bytes], arrivals_s: Sequence[float]
    ) -> list[Recording]:
        """Sends requests at their times.

        Args:
            bodies: of the requests.
            arrivals_s: seconds after this call, ascending.

        Returns:
            A recording for each, in their order.
        """
        begin_s = time.perf_counter()
        tasks = []
        for body, arrival_s in zip(bodies, arrivals_s, strict=True):
            wait_s = begin_s + arrival_s - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            tasks.append(asyncio.create_task(self.send(body)))
        return list(await asyncio.gather(*tasks))

    async def _exchange(self, body: bytes, recording: Recording) -> None:
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._url, data=body, headers=headers) as response:
            recording.status = response.status
            async for data in response.content.iter_any():
                recording.reads.append((time.perf_counter(), data))
                self.num_reads += 1
