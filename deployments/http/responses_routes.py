"""The routes of the Responses API."""

from __future__ import annotations

import functools

from fastapi import FastAPI, Request
from fastapi.responses import Response

from deployments.http.response_store import ResponseStore, StoredResponse
from deployments.http.streaming import generation_response, json_response
from deployments.ingress.service import ModelService
from qwen3_a8w8.openai.request import parse_request
from qwen3_a8w8.openai.response import ResponseIdentity
from qwen3_a8w8.openai.responses.items import Item
from qwen3_a8w8.openai.responses.request import ResponsesRequest
from qwen3_a8w8.openai.responses.shapes import DeletedResponse, InputItemsPage, ResponseObject
from qwen3_a8w8.openai.responses.writer import ResponsesWriter


def add_responses_routes(
    app: FastAPI, service: ModelService, store: ResponseStore, *, keep_alive_s: float | None
) -> None:
    """Adds the routes to an application."""

    @app.post("/v1/responses")
    async def create(request: Request) -> Response:
        body = parse_request(ResponsesRequest, await request.body())
        earlier: list[Item] = []
        if body.previous_response_id is not None:
            earlier = list(store.get(body.previous_response_id, "previous_response_id").items)
        chat = body.to_chat(earlier)

        def keep(response: ResponseObject) -> None:
            output = [item.model_dump(exclude_unset=True) for item in response.output]
            items = (*earlier, *body.input, *output)
            store.put(response.id, StoredResponse(response.to_json(), items, len(output)))

        is_kept = store.is_open and body.is_stored
        make_writer = functools.partial(ResponsesWriter, body, keep if is_kept else None)
        started = await service.start_chat(
            chat, ResponseIdentity.for_response(service.name), make_writer
        )
        return await generation_response(started, body, keep_alive_s)

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
        store.delete(response_id)
        return json_response(DeletedResponse(id=response_id, object="response", deleted=True))
