"""The HTTP routes, as a FastAPI application over a `ModelService`.

Routes parse, start a generation and pass it to `streaming.py`; shapes are
`qwen3_a8w8.openai`'s. Doesn't import Ray, so tests drive it with a fake engine.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from deployments.http.engine_routes import add_engine_routes
from deployments.http.errors import RouteError, error_response
from deployments.http.messages_routes import add_messages_routes
from deployments.http.model_routes import add_model_routes
from deployments.http.ollama_routes import ShowRequest, add_ollama_routes
from deployments.http.openapi import describe_bodies
from deployments.http.page_routes import add_page_routes
from deployments.http.paths import PathSpellings
from deployments.http.response_store import ResponseStore
from deployments.http.responses_routes import add_responses_routes
from deployments.http.security import RequestGuard
from deployments.http.status_routes import IngressReports, add_status_routes
from deployments.http.streaming import (
    generation_response,
    json_response,
    unknown_fields_header,
)
from deployments.http.token_routes import add_token_routes
from deployments.ingress.service import ModelService
from qwen3_a8w8 import __version__
from qwen3_a8w8.anthropic.request import CountTokensRequest, MessagesRequest
from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.ollama.request import OllamaChatRequest, OllamaGenerateRequest
from qwen3_a8w8.openai.chat.request import ChatRequest
from qwen3_a8w8.openai.chat.writer import ChatWriter
from qwen3_a8w8.openai.completions.request import BatchRequest, CompletionRequest
from qwen3_a8w8.openai.request import parse_request
from qwen3_a8w8.openai.response import ResponseIdentity
from qwen3_a8w8.openai.responses.request import ResponsesRequest
from qwen3_a8w8.openai.tokenization import DetokenizeRequest, TokenizeRequest


def build_api(
    service: ModelService,
    *,
    max_body_bytes: int,
    keep_alive_s: float | None = None,
    max_stored_responses: int = 0,
    ingress_reports: IngressReports | None = None,
    has_vllm_names: bool = False,
    has_page: bool = True,
) -> FastAPI:
    """Makes the application.

    Args:
        service: the model.
        max_body_bytes: longest request body; longer ones get a 413.
        keep_alive_s: a stream that is silent for so long gets a comment; None: never.
        max_stored_responses: responses kept for `previous_response_id`.
        ingress_reports: reports of all ingress processes; None: this is the only one.
        has_vllm_names: `/metrics` has the values under vLLM's names too.
        has_page: `/` is the page.
    """
    store = ResponseStore(max_stored_responses)
    app = FastAPI(title="qwen3-a8w8", version=__version__, docs_url=None, redoc_url=None)
    app.add_middleware(PathSpellings)
    app.add_middleware(RequestGuard, max_body_bytes=max_body_bytes)

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        route = RouteError(
            f"{request.method} {request.url.path}: {error.detail}; docs/api.md lists the routes",
            status=error.status_code,
            code=code,
        )
        response = error_response(route, request.url.path)
        response.headers.update(error.headers or {})
        return response

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        chat = parse_request(ChatRequest, await request.body())
        started = await service.start_chat(
            chat, ResponseIdentity.new("chatcmpl-", service.name), ChatWriter
        )
        return await generation_response(started, chat, keep_alive_s)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        completion = parse_request(CompletionRequest, await request.body())
        started = await service.start_completion(completion)
        return await generation_response(started, completion, keep_alive_s)

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

    add_model_routes(app, service)
    add_responses_routes(app, service, store, keep_alive_s=keep_alive_s)
    add_messages_routes(app, service, keep_alive_s=keep_alive_s)
    add_ollama_routes(app, service, keep_alive_s=keep_alive_s)
    add_token_routes(app, service)
    reports = ingress_reports or service.own_report
    add_status_routes(app, service, reports, has_vllm_names=has_vllm_names)
    add_engine_routes(app, service, reports)
    if has_page:
        add_page_routes(app)
    describe_bodies(
        app,
        {
            "/v1/chat/completions": ChatRequest,
            "/v1/chat/completions/render": ChatRequest,
            "/v1/completions": CompletionRequest,
            "/v1/completions/render": CompletionRequest,
            "/v1/batch_generate": BatchRequest,
            "/v1/responses": ResponsesRequest,
            "/v1/responses/input_tokens": ResponsesRequest,
            "/v1/messages": MessagesRequest,
            "/v1/messages/count_tokens": CountTokensRequest,
            "/api/chat": OllamaChatRequest,
            "/api/generate": OllamaGenerateRequest,
            "/api/show": ShowRequest,
            "/tokenize": TokenizeRequest,
            "/detokenize": DetokenizeRequest,
        },
    )
    return app
