"""Routes that show the model's input: tokenize, detokenize, render. They generate nothing."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from deployments.http.streaming import json_response
from deployments.ingress.service import ModelService
from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.chat.request import ChatRequest
from qwen3_a8w8.openai.completions.request import CompletionRequest
from qwen3_a8w8.openai.request import parse_request
from qwen3_a8w8.openai.tokenization import (
    DetokenizeRequest,
    DetokenizeResponse,
    RenderResponse,
    TokenizeRequest,
    TokenizeResponse,
)


def add_token_routes(app: FastAPI, service: ModelService) -> None:
    """Adds the routes to an application."""
    tokenizer = service.prompts.tokenizer

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        body = parse_request(TokenizeRequest, await request.body())
        service.check_model(body.model)
        limit = (await service.engine.capabilities()).max_model_len
        if body.messages is not None:
            chat = await service.prompts.chat(
                [message.for_template() for message in body.messages],
                limit,
                tools=[tool.for_template() for tool in body.tools] if body.tools else None,
                template_kwargs=body.chat_template_kwargs,
                add_generation_prompt=body.add_generation_prompt is not False,
                continue_final_message=bool(body.continue_final_message),
            )
            ids = chat.token_ids
        else:
            ids = await service.prompts.encode(body.prompt or "", limit)
        response = TokenizeResponse(count=len(ids), max_model_len=limit, tokens=list(ids))
        if body.return_token_strs:
            response.token_strs = [tokenizer.token_text(token_id) for token_id in ids]
        return json_response(response)

    @app.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        body = parse_request(DetokenizeRequest, await request.body())
        service.check_model(body.model)
        vocab_size = (await service.engine.capabilities()).vocab_size
        for position, token_id in enumerate(body.tokens):
            if token_id >= vocab_size:
                raise InvalidRequestError(
                    f"tokens[{position}] is token {token_id}, but ids go from 0 to "
                    f"{vocab_size - 1}",
                    param=f"tokens[{position}]",
                )
        text = tokenizer.decode(body.tokens, skip_special_tokens=False)
        return json_response(DetokenizeResponse(prompt=text))

    @app.post("/v1/completions/render")
    async def render_texts(request: Request) -> Response:
        completion = parse_request(CompletionRequest, await request.body())
        service.check_model(completion.model)
        limit = (await service.engine.capabilities()).max_model_len
        prompts = [
            _rendered(tokenizer.decode(ids, skip_special_tokens=False), ids, limit)
            for ids in await service.completion_prompts(completion)
        ]
        return JSONResponse([prompt.model_dump() for prompt in prompts])

    @app.post("/v1/chat/completions/render")
    async def render(request: Request) -> Response:
        chat = parse_request(ChatRequest, await request.body())
        service.check_model(chat.model)
        prompt = await service.chat_prompt(chat)
        text = prompt.text
        if chat.truncate_prompt_tokens is not None:
            text = tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
        limit = (await service.engine.capabilities()).max_model_len
        return json_response(_rendered(text, prompt.token_ids, limit))


def _rendered(text: str, token_ids: Sequence[int], max_model_len: int) -> RenderResponse:
    return RenderResponse(
        prompt=text,
        prompt_token_ids=list(token_ids),
        count=len(token_ids),
        max_model_len=max_model_len,
    )
