"""Chat messages as clients send them, and as a chat template wants them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _join_parts(value: object) -> object:
    """Text of a content that is a string or a list of parts of type text."""
    if not isinstance(value, list):
        return value
    texts = []
    for position, part in enumerate(value):
        if not isinstance(part, dict):
            raise ValueError(f"part {position} is no object, expected {{'type': 'text', ...}}")
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError(
                f"part {position} has type {part.get('type')!r}; only parts of type 'text' with "
                "a string 'text' are supported"
            )
        texts.append(part["text"])
    return "\n".join(texts)


Text = Annotated[str, BeforeValidator(_join_parts)]


class _Message(BaseModel):
    # Clients send back what they received, with fields such as refusal, audio, annotations.
    model_config = ConfigDict(strict=True, extra="ignore")


class InstructionMessage(_Message):
    """Instructions for the model; Qwen3 knows them under the role "system" only."""

    role: Literal["system", "developer"]
    content: Text

    def for_template(self) -> dict[str, Any]:
        """The message as a template reads it."""
        return {"role": "system", "content": self.content}


class UserMessage(_Message):
    """What the user said."""

    role: Literal["user"]
    content: Text

    def for_template(self) -> dict[str, Any]:
        """The message as a template reads it."""
        return {"role": "user", "content": self.content}


class CalledFunction(_Message):
    """Name and arguments (JSON text) of a call in the history."""

    name: str = Field(min_length=1)
    arguments: str = "{}"

    def for_template(self) -> dict[str, Any]:
        """Arguments as an object, which every template can write; text that is none stays text."""
        try:
            arguments = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        return {
            "name": self.name,
            "arguments": arguments if isinstance(arguments, dict) else self.arguments,
        }


class PastToolCall(_Message):
    """A call that the assistant made earlier."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(_Message):
    """An earlier answer; content may be null or empty, as clients send it beside tool calls."""

    role: Literal["assistant"]
    content: Annotated[str | None, BeforeValidator(_join_parts)] = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[PastToolCall] | None = None

    def for_template(self) -> dict[str, Any]:
        """The message as a template reads it."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content or ""}
        reasoning = self.reasoning if self.reasoning_content is None else self.reasoning_content
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": call.function.for_template()}
                for call in self.tool_calls
            ]
        return message


class ToolMessage(_Message):
    """Result of a tool call."""

    role: Literal["tool"]
    content: Text
    tool_call_id: str | None = None
    name: str | None = None

    def for_template(self) -> dict[str, Any]:
        """The message as a template reads it."""
        message: dict[str, Any] = {"role": "tool", "content": self.content}
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            message["name"] = self.name
        return message


Message = Annotated[
    InstructionMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]
