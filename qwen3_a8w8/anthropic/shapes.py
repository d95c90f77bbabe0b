"""Schemas of messages and of the events of a streamed one."""

from __future__ import annotations

from typing import Any, Literal

from qwen3_a8w8.openai.response import ResponseModel

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextContent(ResponseModel):
    """Text of the answer."""

    type: Literal["text"]
    text: str


class ThinkingContent(ResponseModel):
    """The think block; the signature, which Anthropic's servers check, is empty."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseContent(ResponseModel):
    """A call."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


Content = TextContent | ThinkingContent | ToolUseContent


class MessageUsage(ResponseModel):
    """Token counts; `input_tokens` are those that didn't come from the prefix cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageObject(ResponseModel):
    """A message, complete or at its start."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Content]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageEvent(ResponseModel):
    """An event of a streamed message; each kind has some of the optional fields."""

    type: str
    message: MessageObject | None = None
    index: int | None = None
    content_block: Content | None = None
    delta: dict[str, Any] | None = None
    usage: MessageUsage | None = None
    error: dict[str, Any] | None = None

    @property
    def event_name(self) -> str:
        """The event's name in its SSE frame."""
        return self.type


class TokenCount(ResponseModel):
    """Response to `POST /v1/messages/count_tokens`."""

    input_tokens: int
