"""Generations as HTTP responses: whole, or as server-sent events.

Errors are reported by status as long as nothing has been sent, and by an error frame
afterwards; either way in the API's own shape. A generation ends with its response, however
that ends.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import AsyncIterator, Mapping

from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from deployments.http.errors import status_and_code
from deployments.http.framing import Framing, OpenAiFraming
from deployments.ingress.generation import Generation
from deployments.ingress.service import AnyWriter, Started
from qwen3_a8w8.openai.request import RequestModel
from qwen3_a8w8.openai.response import ResponseModel

OPENAI_FRAMING = OpenAiFraming()
MAX_UNKNOWN_FIELDS = 32
_is_header_safe = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch

logger = logging.getLogger("ray.serve")


async def generation_response(
    started: Started,
    request: RequestModel,
    keep_alive_s: float | None,
    framing: Framing = OPENAI_FRAMING,
) -> Response:
    """The response to a started request.

    Args:
        started: its generation and writer.
        request: its body.
        keep_alive_s: a stream that is silent for so long gets a frame that says nothing; None:
            never.
        framing: of a stream.
    """
    headers = unknown_fields_header(request) | skipped_tools_header(request)
    if request.is_stream:
        return EventStreamResponse(started, headers, keep_alive_s, framing)
    return json_response(await _whole(*started), headers)


def json_response(body: ResponseModel, headers: Mapping[str, str] | None = None) -> Response:
    """A response that isn't streamed."""
    return Response(
        body.to_json(), media_type="application/json", headers=dict(headers) if headers else None
    )


class EventStreamResponse(StreamingResponse):
    """The events of a generation."""

    def __init__(
        self,
        started: Started,
        headers: Mapping[str, str],
        keep_alive_s: float | None,
        framing: Framing = OPENAI_FRAMING,
    ) -> None:
        self._generation, writer = started
        super().__init__(
            _frames(self._generation, writer, keep_alive_s, framing),
            media_type=framing.media_type,
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream; a client that leaves cancels this, and with it the generation."""
        with contextlib.closing(self._generation):
            await super().__call__(scope, receive, send)


async def _frames(
    generation: Generation, writer: AnyWriter, keep_alive_s: float | None, framing: Framing
) -> AsyncIterator[str]:
    try:
        if first := [framing.event(event) for event in writer.begin()]:
            yield "".join(first)
        async for updates in generation.every(keep_alive_s):
            if not updates and keep_alive_s is not None and framing.keep_alive:
                yield framing.waiting if generation.waits_for_engine else framing.keep_alive
            frames = [
                framing.event(event)
                for index, delta in updates
                for event in writer.feed(index, delta)
            ]
            if frames:
                yield "".join(frames)
        for event in writer.finish():
            yield framing.event(event)
    except Exception as error:
        log_failure(error)
        code = status_and_code(error)[1]
        events = [framing.event(event) for event in writer.fail(error, code)]
        yield "".join(events) or framing.error(error, code)
    if framing.end:
        yield framing.end


async def _whole(generation: Generation, writer: AnyWriter) -> ResponseModel:
    events = [*writer.begin()]
    with contextlib.closing(generation):
        async for updates in generation:
            for index, delta in updates:
                events += writer.feed(index, delta)
    events += writer.finish()
    whole: ResponseModel = writer.whole(events)
    return whole


def log_failure(error: Exception) -> None:
    """Logs why a request wasn't answered; a defect with all that is known of it."""
    if status_and_code(error)[0] == 500:
        logger.error("a request failed", exc_info=error)
    else:
        logger.info("a request was refused or lost: %s", error)


def skipped_tools_header(request: RequestModel) -> dict[str, str]:
    """Header that names the types of tools that were left out of a request."""
    names = [name for name in request.skipped_tools if _is_header_safe(name)]
    return {"X-Skipped-Tools": ", ".join(names[:MAX_UNKNOWN_FIELDS])} if names else {}


def unknown_fields_header(request: RequestModel) -> dict[str, str]:
    """Header that names fields without effect, as far as a header can carry them."""
    names = [name for name in request.unknown_fields() if _is_header_safe(name)]
    return {"X-Unknown-Fields": ", ".join(names[:MAX_UNKNOWN_FIELDS])} if names else {}
