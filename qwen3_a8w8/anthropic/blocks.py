"""Content blocks of messages, and their conversion to chat messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from qwen3_a8w8.openai.request import PlaceError, shown


class _Block(BaseModel):
    # Blocks carry cache_control, citations and the like, which change no answer here.
    model_config = ConfigDict(strict=True, extra="ignore")


class TextBlock(_Block):
    """Text."""

    type: Literal["text"]
    text: str


_MEDIA = ("image", "document", "search_result")


def _as_blocks(value: object) -> object:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list):
        raise PlaceError("", f"is {shown(value)}; expected a string or a list of blocks")
    for place, block in enumerate(value):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind in _MEDIA:
            raise PlaceError(
                f"[{place}].type", f"is {shown(kind)}; the model reads text only, send it as text"
            )
    return value


Text = Annotated[list[TextBlock], BeforeValidator(_as_blocks)]
"""A string, or blocks of text."""


class ThinkingBlock(_Block):
    """A think block; its signature isn't checked, there are no secrets in it."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(_Block):
    """A think block that only another server can read; left out."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(_Block):
    """A call."""

    type: Literal["tool_use"]
    id: str
    name: str = Field(min_length=1)
    input: dict[str, Any]


class ToolResultBlock(_Block):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Text | None = None
    is_error: bool | None = None


class HostedToolBlock(_Block):
    """Trace of a tool that another server ran; left out."""

    type: Literal[
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "advisor_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "mcp_tool_listing",
        "container_upload",
        "fallback",
    ]


Block = Annotated[
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | HostedToolBlock,
    Field(discriminator="type"),
]


class Message(BaseModel):
    """One turn; `system` may stand between others, as in later versions of the API."""

    model_config = ConfigDict(strict=True, extra="ignore")

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], BeforeValidator(_as_blocks)]


def text_of(content: Sequence[TextBlock] | None) -> str:
    """The text of a content that has text only."""
    return "\n".join(block.text for block in content or ())


BILLING_LINE = "x-anthropic-billing-header:"
"""Start of the line that Claude Code puts before its instructions, for Anthropic's bills."""


def instructions_of(system: Sequence[TextBlock] | None) -> str:
    """The text of the instructions, without a line for bills at the start of a block.

    That line has a checksum of the request in it: with it, no two prompts of a conversation would
    have a beginning in common that the prefix cache could keep.
    """
    texts = [
        block.text.partition("\n")[2] if block.text.startswith(BILLING_LINE) else block.text
        for block in system or ()
    ]
    return "\n".join(text for text in texts if text)


def chat_messages(
    messages: Sequence[Message], system: Sequence[TextBlock] | None
) -> list[dict[str, Any]]:
    """The conversation as chat messages.

    A user's turn gives a message for each result of a tool, then one for its text.
    """
    converted: list[dict[str, Any]] = []
    if text := instructions_of(system):
        converted.append({"role": "system", "content": text})
    for message in messages:
        if message.role == "assistant":
            converted.append(_assistant(message.content))
        else:
            converted += _others(message.role, message.content)
    return converted


def _assistant(blocks: Sequence[Block]) -> dict[str, Any]:
    text = "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {
                "name": block.name,
                "arguments": json.dumps(block.input, ensure_ascii=False),
            },
        }
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _others(role: str, blocks: Sequence[Block]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block)}
        for block in blocks
        if isinstance(block, ToolResultBlock)
    ]
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    if texts or not messages:
        messages.append({"role": role, "content": "\n".join(texts)})
    return messages


def _result(block: ToolResultBlock) -> str:
    """Text of a result. Chat messages have no field for a failure, so the text says it."""
    text = text_of(block.content)
    return f"Error: {text}" if block.is_error else text
