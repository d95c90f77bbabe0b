"""The HTTP routes, as a FastAPI application over a `ModelService`.

Routes parse, start a generation and choose between one response and a stream; shapes are
`qwen3_a8w8.openai`'s. Errors are told by status as long as nothing has been sent, and by an
error frame afterwards; either way in OpenAI's shape. Knows no Ray, so tests drive it with
a fake engine.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.errors import BodyTooLargeError, RouteError
from deployments.generation import Generation
from deployments.http_errors import error_response, status_and_code
from deployments.openapi import describe_bodies
from deployments.report import prometheus_text
from deployments.service import ModelService, StartedChat, StartedCompletion
from qwen3_a8w8 import __version__
from qwen3_a8w8.openai.chat_collector import ChatCollector
from qwen3_a8w8.openai.chat_request import ChatRequest
from qwen3_a8w8.openai.chat_stream import ChatStream
from qwen3_a8w8.openai.completion_request import CompletionRequest
from qwen3_a8w8.openai.completion_stream import CompletionCollector, CompletionStream
from qwen3_a8w8.openai.request import parse_request
from qwen3_a8w8.openai.response import (
    ResponseIdentity,
    ResponseModel,
    make_model_card,
    make_model_list,
)
from qwen3_a8w8.openai.sse import DONE_FRAME, MEDIA_TYPE, data_frame, error_frame

HEALTH_TIMEOUT_S = 5.0

logger = logging.getLogger("ray.serve")


def build_api(service: ModelService, *, max_body_bytes: int) -> FastAPI:
    """Makes the application.

    Args:
        service: the model.
        max_body_bytes: longest request body; longer ones get a 413.
    """
    app = FastAPI(title="qwen3-a8w8", version=__version__, docs_url=None, redoc_url=None)
    app.add_middleware(RequestGuard, max_body_bytes=max_body_bytes)
    started_s = int(time.time())

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        route = RouteError(
            f"{request.method} {request.url.path}: {error.detail}; see the README for the routes",
            status=error.status_code,
            code=code,
        )
        response = error_response(route)
        response.headers.update(error.headers or {})
        return response

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        chat = parse_request(ChatRequest, await request.body())
        started = await service.start_chat(chat)
        identity = ResponseIdentity.for_chat(service.name)
        if chat.is_stream:
            stream = _chat_stream(started, identity, has_usage=chat.has_stream_usage)
            return EventStreamResponse(started.generation, stream)
        return await _collect(started.generation, _chat_collector(started, identity))

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        completion = parse_request(CompletionRequest, await request.body())
        started = await service.start_completion(completion)
        identity = ResponseIdentity.for_completion(service.name)
        if completion.is_stream:
            stream = _completion_stream(started, identity, has_usage=completion.has_stream_usage)
            return EventStreamResponse(
                started.generation, stream, num_per_prompt=started.num_per_prompt
            )
        return await _collect(
            started.generation,
            _completion_collector(started, identity),
            num_per_prompt=started.num_per_prompt,
        )

    @app.post("/v1/completions/batch")
    async def completions_batch(request: Request) -> Response:
        completion = parse_request(CompletionRequest, await request.body())
        results = await service.complete_batch(completion)
        collector = CompletionCollector(
            ResponseIdentity.for_completion(service.name),
            num_choices=len(results),
            prompt_tokens=sum(len(output.prompt_token_ids) for output, _ in results),
        )
        for index, (_, delta) in enumerate(results):
            collector.feed(index, delta)
        return _json(collector.response())

    async def model_card() -> Any:
        capabilities = await service.engine.capabilities()
        return make_model_card(
            service.name, created=started_s, max_model_len=capabilities.max_model_len
        )

    @app.get("/v1/models")
    async def models() -> Response:
        return _json(make_model_list([await model_card()]))

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        service.check_model(name)
        return _json(await model_card())

    @app.get("/health")
    async def health() -> Response:
        await service.engine.check_ready(HEALTH_TIMEOUT_S)
        return JSONResponse({"status": "ok"})

    @app.get("/version")
    async def version() -> Response:
        return JSONResponse({"version": __version__})

    @app.get("/metrics")
    async def metrics() -> Response:
        text = prometheus_text(await service.engine.reports())
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    describe_bodies(
        app,
        {
            "/v1/chat/completions": ChatRequest,
            "/v1/completions": CompletionRequest,
            "/v1/completions/batch": CompletionRequest,
        },
    )
    return app


class EventStreamResponse(StreamingResponse):
    """Server-sent events of a generation, which ends with the response, however that ends."""

    def __init__(
        self,
        generation: Generation,
        stream: ChatStream | CompletionStream,
        *,
        num_per_prompt: int | None = None,
    ) -> None:
        self._generation = generation
        super().__init__(
            _frames(generation, stream, num_per_prompt),
            media_type=MEDIA_TYPE,
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream; a client that leaves cancels this, and with it the generation."""
        with contextlib.closing(self._generation):
            await super().__call__(scope, receive, send)


async def _frames(
    generation: Generation, stream: ChatStream | CompletionStream, num_per_prompt: int | None
) -> AsyncIterator[str]:
    try:
        async for news in generation:
            frames = [
                data_frame(chunk) for index, delta in news for chunk in stream.feed(index, delta)
            ]
            if frames:
                yield "".join(frames)
        for chunk in stream.finish(_cached_tokens(generation, num_per_prompt)):
            yield data_frame(chunk)
    except Exception as error:
        _log_failure(error)
        yield error_frame(error, code=status_and_code(error)[1])
    yield DONE_FRAME


async def _collect(
    generation: Generation,
    collector: ChatCollector | CompletionCollector,
    *,
    num_per_prompt: int | None = None,
) -> Response:
    with contextlib.closing(generation):
        async for news in generation:
            for index, delta in news:
                collector.feed(index, delta)
    return _json(collector.response(_cached_tokens(generation, num_per_prompt)))


def _cached_tokens(generation: Generation, num_per_prompt: int | None) -> int:
    """Cached prompt tokens, each prompt counted once, as in `prompt_tokens`."""
    return sum(generation.num_cached_tokens[:: num_per_prompt or None] or [0])


def _chat_stream(
    started: StartedChat, identity: ResponseIdentity, *, has_usage: bool
) -> ChatStream:
    return ChatStream(
        identity,
        num_choices=started.num_choices,
        prompt_tokens=started.num_prompt_tokens,
        parsing=started.parsing,
        has_usage=has_usage,
    )


def _chat_collector(started: StartedChat, identity: ResponseIdentity) -> ChatCollector:
    return ChatCollector(
        identity,
        num_choices=started.num_choices,
        prompt_tokens=started.num_prompt_tokens,
        parsing=started.parsing,
    )


def _completion_stream(
    started: StartedCompletion, identity: ResponseIdentity, *, has_usage: bool
) -> CompletionStream:
    return CompletionStream(
        identity,
        num_choices=started.num_choices,
        prompt_tokens=started.num_prompt_tokens,
        echo_texts=started.echo_texts,
        has_usage=has_usage,
    )


def _completion_collector(
    started: StartedCompletion, identity: ResponseIdentity
) -> CompletionCollector:
    return CompletionCollector(
        identity,
        num_choices=started.num_choices,
        prompt_tokens=started.num_prompt_tokens,
        echo_texts=started.echo_texts,
    )


def _json(body: ResponseModel) -> Response:
    return Response(body.to_json(), media_type="application/json")


def _log_failure(error: Exception) -> None:
    if status_and_code(error)[0] == 500:
        logger.error("a request failed", exc_info=error)
    else:
        logger.info("a request was refused or lost: %s", error)


class RequestGuard:
    """ASGI middleware: bounds the body and answers every exception in OpenAI's shape."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        num_bytes = 0
        has_begun = False

        async def bounded_receive() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_body_bytes:
                raise BodyTooLargeError(
                    f"the request body has more than {self._max_body_bytes} bytes, the limit "
                    "http.max_body_bytes; shorten it or raise the limit"
                )
            return message

        async def watched_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, bounded_receive, watched_send)
        except Exception as error:
            _log_failure(error)
            if has_begun:
                raise
            await error_response(error)(scope, receive, send)
