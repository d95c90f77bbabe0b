"""The routes of Anthropic's Messages API, translated to chat completions."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import Response

from deployments.http.errors import MESSAGES_PATH
from deployments.http.framing import AnthropicFraming
from deployments.http.streaming import generation_response, json_response
from deployments.ingress.service import ModelService
from qwen3_a8w8.anthropic.request import OWN_NAMES, CountTokensRequest, MessagesRequest
from qwen3_a8w8.anthropic.shapes import TokenCount
from qwen3_a8w8.anthropic.writer import MessagesWriter
from qwen3_a8w8.openai.request import own_names, parse_request
from qwen3_a8w8.openai.response import ResponseIdentity


def add_messages_routes(app: FastAPI, service: ModelService, *, keep_alive_s: float | None) -> None:
    """Adds the routes to an application."""
    framing = AnthropicFraming()

    @app.post(MESSAGES_PATH)
    async def create(request: Request) -> Response:
        body = parse_request(MessagesRequest, await request.body())
        identity = ResponseIdentity.new("msg_", service.name)
        chat = body.to_chat()
        with own_names(OWN_NAMES):
            started = await service.start_chat(chat, identity, MessagesWriter)
        return await generation_response(started, body, keep_alive_s, framing)

    @app.post(f"{MESSAGES_PATH}/count_tokens")
    async def count_tokens(request: Request) -> Response:
        body = parse_request(CountTokensRequest, await request.body())
        service.check_model(body.model)
        chat = body.to_chat()
        with own_names(OWN_NAMES):
            prompt = await service.chat_prompt(chat)
        return json_response(TokenCount(input_tokens=len(prompt.token_ids)))
