"""Schemas of the Responses API: output items, the response, and its streaming events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.chat.shapes import ContentLogprob
from qwen3_a8w8.openai.request import shown
from qwen3_a8w8.openai.response import ResponseModel

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(ResponseModel):
    """Text of a message."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any]
    logprobs: list[ContentLogprob]


class ReasoningText(ResponseModel):
    """Text of a think block."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class MessageItem(ResponseModel):
    """A message of the assistant."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningItem(ResponseModel):
    """Reasoning of the assistant."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]


class CallItem(ResponseModel):
    """A function call of the assistant."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class CustomCallItem(ResponseModel):
    """A call of a custom tool, whose input is free text."""

    id: str
    type: Literal["custom_tool_call"]
    status: ItemStatus
    call_id: str
    name: str
    input: str


OutputItem = MessageItem | ReasoningItem | CallItem | CustomCallItem


class InputDetails(ResponseModel):
    """Tokens of the prompt that came from the prefix cache."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(ResponseModel):
    """Tokens of the think block."""

    reasoning_tokens: int


class ResponsesUsage(ResponseModel):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseObject(ResponseModel):
    """A response, complete or in progress; null fields are part of the format."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, Any]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponsesUsage | None
    user: str | None


class ResponseEvent(ResponseModel):
    """An event of a streamed response; each kind has some of the optional fields."""

    type: str
    sequence_number: int
    response: ResponseObject | None = None
    output_index: int | None = None
    content_index: int | None = None
    item_id: str | None = None
    item: OutputItem | None = None
    part: OutputText | ReasoningText | None = None
    delta: str | None = None
    text: str | None = None
    arguments: str | None = None
    input: str | None = None
    name: str | None = None
    logprobs: list[ContentLogprob] | None = None

    @property
    def event_name(self) -> str:
        """The event's name in its SSE frame."""
        return self.type


class InputTokens(ResponseModel):
    """Response to `POST /v1/responses/input_tokens`."""

    object: Literal["response.input_tokens"]
    input_tokens: int


MAX_PAGE = 100


class InputItemsPage(ResponseModel):
    """A page of `GET /v1/responses/{id}/input_items`."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(
        cls,
        response_id: str,
        items: Sequence[dict[str, Any]],
        order: str,
        after: str | None,
        limit: str,
    ) -> InputItemsPage:
        """A page of items; those that were sent without an id get one from their position.

        Args:
            response_id: of the response that the items belong to.
            items: all of them, in their order.
            order: "asc" or "desc".
            after: id of the item before the page; None: from the start.
            limit: most items, 1 to 100, in decimal digits.

        Raises:
            InvalidRequestError: a parameter has another value, or there is no such item.
        """
        if order not in ("asc", "desc"):
            raise InvalidRequestError(
                f"order is {shown(order)}; expected asc or desc", param="order"
            )
        if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= MAX_PAGE):
            raise InvalidRequestError(
                f"limit is {shown(limit)}; expected 1 to {MAX_PAGE}", param="limit"
            )
        full = [_full_item(response_id, place, item) for place, item in enumerate(items)]
        if order == "desc":
            full.reverse()
        start = 0
        if after is not None:
            ids = [item["id"] for item in full]
            if after not in ids:
                raise InvalidRequestError(
                    f"after is {shown(after)}, which is no item of this response", param="after"
                )
            start = ids.index(after) + 1
        page = full[start : start + int(limit)]
        return cls(
            object="list",
            data=page,
            first_id=page[0]["id"] if page else None,
            last_id=page[-1]["id"] if page else None,
            has_more=start + len(page) < len(full),
        )


def _full_item(response_id: str, place: int, item: dict[str, Any]) -> dict[str, Any]:
    """An item with the fields that clients may leave out when they send it."""
    kind = item.get("type") or "message"
    defaults: dict[str, Any] = {"id": f"item_{response_id.removeprefix('resp_')}_{place}"}
    full = defaults | {name: value for name, value in item.items() if value is not None}
    full |= {"type": kind}
    full.setdefault("status", "completed")
    content = full.get("content")
    if kind == "message" and isinstance(content, str):
        is_output = full.get("role") == "assistant"
        text: dict[str, Any] = {"type": "output_text" if is_output else "input_text"}
        text |= {"text": content} | ({"annotations": [], "logprobs": []} if is_output else {})
        full["content"] = [text]
    return full


class DeletedResponse(ResponseModel):
    """Response to `DELETE /v1/responses/{id}`."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]
