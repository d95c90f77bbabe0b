"""The HTTP routes, as a FastAPI application over a `ModelService`.

Routes parse, start a generation and hand it to `answers.py`; shapes are
`qwen3_a8w8.openai`'s. Knows no Ray, so tests drive it with a fake engine.
"""

from __future__ import annotations

import time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.http.errors import BodyTooLargeError, RouteError, error_response
from deployments.http.openapi import describe_bodies
from deployments.http.response_store import ResponseStore
from deployments.http.responses_routes import add_responses_routes
from deployments.http.status_routes import add_status_routes
from deployments.http.streaming import (
    answer_response,
    json_response,
    log_failure,
    unknown_fields_header,
)
from deployments.http.token_routes import add_token_routes
from deployments.ingress.generation import StartedAnswer
from deployments.ingress.service import ModelService
from qwen3_a8w8 import __version__
from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.chat.request import ChatRequest
from qwen3_a8w8.openai.chat.writer import ChatAnswer
from qwen3_a8w8.openai.completions.request import BatchRequest, CompletionRequest
from qwen3_a8w8.openai.request import parse_request
from qwen3_a8w8.openai.response import ResponseIdentity, make_model_card, make_model_list
from qwen3_a8w8.openai.responses.request import ResponsesRequest
from qwen3_a8w8.openai.sampling_fields import SamplingFields
from qwen3_a8w8.openai.tokenization import DetokenizeRequest, TokenizeRequest


def build_api(
    service: ModelService,
    *,
    max_body_bytes: int,
    keep_alive_s: float | None = None,
    max_stored_responses: int = 0,
) -> FastAPI:
    """Makes the application.

    Args:
        service: the model.
        max_body_bytes: longest request body; longer ones get a 413.
        keep_alive_s: a stream that is silent for so long gets a comment; None: never.
        max_stored_responses: responses kept for `previous_response_id`.
    """
    store = ResponseStore(max_stored_responses)
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

    async def answer(started: StartedAnswer, request: SamplingFields) -> Response:
        return await answer_response(
            started,
            is_stream=request.is_stream,
            headers=unknown_fields_header(request),
            keep_alive_s=keep_alive_s,
        )

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        chat = parse_request(ChatRequest, await request.body())
        started = await service.start_chat(
            chat, ResponseIdentity.for_chat(service.name), ChatAnswer
        )
        return await answer(started, chat)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        completion = parse_request(CompletionRequest, await request.body())
        started = await service.start_completion(completion)
        return await answer(started, completion)

    @app.post("/v1/batch_generate")
    async def batch_generate(request: Request) -> Response:
        batch = parse_request(BatchRequest, await request.body())
        try:
            completion = await service.complete_batch(batch)
        except InvalidRequestError as error:
            if error.param == "prompt":
                error.param = batch.prompts_field
            raise
        return json_response(completion, unknown_fields_header(batch))

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

    add_responses_routes(app, service, store, keep_alive_s=keep_alive_s)
    add_token_routes(app, service)
    add_status_routes(app, service)
    describe_bodies(
        app,
        {
            "/v1/chat/completions": ChatRequest,
            "/v1/chat/completions/render": ChatRequest,
            "/v1/completions": CompletionRequest,
            "/v1/batch_generate": BatchRequest,
            "/v1/responses": ResponsesRequest,
            "/tokenize": TokenizeRequest,
            "/detokenize": DetokenizeRequest,
        },
    )
    return app


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
