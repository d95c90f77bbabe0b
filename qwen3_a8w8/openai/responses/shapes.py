"""Schemas of the Responses API: output items, the response, and its streaming events."""

from __future__ import annotations

from typing import Any, Literal

from qwen3_a8w8.openai.response import ResponseModel

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(ResponseModel):
    """Text of a message."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any]
    logprobs: list[Any]


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


OutputItem = MessageItem | ReasoningItem | CallItem


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
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: bool
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_p: float | None
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
    name: str | None = None
    logprobs: list[Any] | None = None

    @property
    def event_name(self) -> str:
        """The event's name in its SSE frame."""
        return self.type


class DeletedResponse(ResponseModel):
    """Response to `DELETE /v1/responses/{id}`."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]
