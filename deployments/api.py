"""The HTTP routes, as a FastAPI application over a `ModelService`.

Routes parse, start a generation and hand it to `answers.py`; shapes are
`qwen3_a8w8.openai`'s. Knows no Ray, so tests drive it with a fake engine.
"""

from __future__ import annotations

import re
import time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.answers import answer_response, json_response, log_failure
from deployments.errors import BodyTooLargeError, RouteError
from deployments.http_errors import error_response
from deployments.report import prometheus_text
from deployments.service import ModelService
from qwen3_a8w8 import __version__
from qwen3_a8w8.openai.chat_request import ChatRequest
from qwen3_a8w8.openai.completion_request import BatchRequest, CompletionRequest
from qwen3_a8w8.openai.request import RequestModel, parse_request
from qwen3_a8w8.openai.response import make_model_card, make_model_list

HEALTH_TIMEOUT_S = 5.0
MAX_UNKNOWN_FIELDS = 32
_HEADER_SAFE = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch


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
        headers = _unknown_fields(chat)
        return await answer_response(started, is_stream=chat.is_stream, headers=headers)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        completion = parse_request(CompletionRequest, await request.body())
        started = await service.start_completion(completion)
        headers = _unknown_fields(completion)
        return await answer_response(started, is_stream=completion.is_stream, headers=headers)

    @app.post("/v1/batch_generate")
    async def batch_generate(request: Request) -> Response:
        batch = parse_request(BatchRequest, await request.body())
        return json_response(await service.complete_batch(batch), _unknown_fields(batch))

    async def model_card() -> Any:
        capabilities = await service.engine.capabilities()
        return make_model_card(
            service.name, created=started_s, max_model_len=capabilities.max_model_len
        )

    @app.get("/v1/models")
    async def models() -> Response:
        return json_response(make_model_list([await model_card()]))

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        service.check_model(name)
        return json_response(await model_card())

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

    return app


def _unknown_fields(request: RequestModel) -> dict[str, str]:
    """Header that names what the client sent in vain; names that no header can carry are left out."""
    names = [name for name in request.unknown_fields() if _HEADER_SAFE(name)]
    return {"X-Unknown-Fields": ", ".join(names[:MAX_UNKNOWN_FIELDS])} if names else {}


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
            log_failure(error)
            if has_begun:
                raise
            await error_response(error)(scope, receive, send)
