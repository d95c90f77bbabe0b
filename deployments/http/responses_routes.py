"""The routes of the Responses API."""

from __future__ import annotations

import functools

from fastapi import FastAPI, Request
from fastapi.responses import Response

from deployments.http.background import BackgroundResponses
from deployments.http.response_store import ResponseStore, StoredResponse
from deployments.http.streaming import generation_response, json_response
from deployments.ingress.service import ModelService
from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.request import own_names, parse_request
from qwen3_a8w8.openai.response import ResponseIdentity
from qwen3_a8w8.openai.responses.items import Item
from qwen3_a8w8.openai.responses.request import OWN_NAMES, ResponsesRequest
from qwen3_a8w8.openai.responses.shapes import (
    DeletedResponse,
    InputItemsPage,
    InputTokens,
    ResponseObject,
)
from qwen3_a8w8.openai.responses.writer import ResponsesWriter


def add_responses_routes(
    app: FastAPI, service: ModelService, store: ResponseStore, *, keep_alive_s: float | None
) -> None:
    """Adds the routes to an application."""
    background = BackgroundResponses()

    def conversation(body: ResponsesRequest) -> list[Item]:
        """Items of earlier responses."""
        if body.previous_response_id is None:
            return []
        return list(store.get(body.previous_response_id, "previous_response_id").items)

    @app.post("/v1/responses")
    async def create(request: Request) -> Response:
        body = parse_request(ResponsesRequest, await request.body())
        earlier = conversation(body)
        chat = body.to_chat(earlier)

        def keep(response: ResponseObject) -> None:
            output = [item.model_dump(exclude_unset=True) for item in response.output]
            items = (*earlier, *body.input, *output)
            stored = StoredResponse(
                response.to_json(), items, len(output), is_background=response.background
            )
            store.put(response.id, stored)

        if body.background and not store.is_open:
            store.get("", "background")
        is_kept = store.is_open and body.is_stored
        make_writer = functools.partial(ResponsesWriter, body, keep if is_kept else None)
        identity = ResponseIdentity.new("resp_", service.name)
        with own_names(OWN_NAMES, sent=body.model_extra or {}):
            started = await service.start_chat(chat, identity, make_writer)
        if body.background:
            writer = started[1]
            assert isinstance(writer, ResponsesWriter)
            response = background.start(started, writer)
            keep(response)
            return json_response(response)
        return await generation_response(started, body, keep_alive_s)

    @app.post("/v1/responses/input_tokens")
    async def input_tokens(request: Request) -> Response:
        """The number of tokens that a request's prompt would have."""
        body = parse_request(ResponsesRequest, await request.body())
        service.check_model(body.model)
        prompt = await service.chat_prompt(body.to_chat(conversation(body)))
        count = len(prompt.token_ids)
        return json_response(InputTokens(object="response.input_tokens", input_tokens=count))

    @app.post("/v1/responses/{response_id}/cancel")
    async def cancel(response_id: str) -> Response:
        """Ends a response that is generated in the background."""
        stored = store.get(response_id)
        if not stored.is_background:
            raise InvalidRequestError(
                f"the response {response_id!r} isn't a background response; only those can be "
                "cancelled",
                code="not_a_background_response",
            )
        background.cancel(response_id)
        return Response(store.get(response_id).body, media_type="application/json")

    @app.get("/v1/responses/{response_id}")
    async def retrieve(response_id: str) -> Response:
        return Response(store.get(response_id).body, media_type="application/json")

    @app.get("/v1/responses/{response_id}/input_items")
    async def input_items(
        response_id: str, order: str = "desc", after: str | None = None, limit: str = "20"
    ) -> Response:
        """The items that a stored response answers, with those of earlier responses."""
        stored = store.get(response_id)
        page = InputItemsPage.of(response_id, stored.input_items, order, after, limit)
        return json_response(page)

    @app.delete("/v1/responses/{response_id}")
    async def delete(response_id: str) -> Response:
        background.cancel(response_id)
        store.delete(response_id)
        return json_response(DeletedResponse(id=response_id, object="response", deleted=True))
