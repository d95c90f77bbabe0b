"""Responses that are generated in the background, for `background: true`.

Such a response outlives its request: it is polled, and may be cancelled. It lives in this process,
as stored responses do.
"""

from __future__ import annotations

import asyncio
import contextlib

from deployments.http.errors import status_and_code
from deployments.http.streaming import log_failure
from deployments.ingress.service import Started
from qwen3_a8w8.openai.responses.shapes import ResponseObject
from qwen3_a8w8.openai.responses.writer import ResponsesWriter


class BackgroundResponses:
    """The responses that are being generated."""

    def __init__(self) -> None:
        """Starts without any."""
        self._running: dict[str, tuple[asyncio.Task[None], ResponsesWriter]] = {}

    def start(self, started: Started, writer: ResponsesWriter) -> ResponseObject:
        """Lets a generation run to its end without a reader.

        Returns:
            The response as it is now, in progress.
        """
        response = writer.object("in_progress")
        task = asyncio.create_task(self._run(started, writer), name=f"background-{response.id}")
        self._running[response.id] = task, writer
        task.add_done_callback(lambda _: self._running.pop(response.id, None))
        return response

    def cancel(self, response_id: str) -> None:
        """Ends a response where it is; nothing happens to one that has ended."""
        if response_id not in self._running:
            return
        task, writer = self._running.pop(response_id)
        if task.cancel():  # False: it has ended, and is kept
            writer.cancel()

    async def _run(self, started: Started, writer: ResponsesWriter) -> None:
        generation, _ = started
        with contextlib.closing(generation):
            try:
                async for updates in generation:
                    for index, delta in updates:
                        writer.feed(index, delta)
                writer.finish()
            except Exception as error:
                log_failure(error)
                writer.keep_failed(error, status_and_code(error)[1])
