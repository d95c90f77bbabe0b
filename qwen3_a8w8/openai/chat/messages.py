"""Chat messages of requests, and their conversion for a chat template."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from qwen3_a8w8.openai.request import PlaceError, given, shown


def _text_of(value: object) -> str:
    """Text of a content: a string or a list of parts of type text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PlaceError("", f"is {shown(value)}; expected a string or a list of parts")
    return "\n".join(_text_of_part(part, f"[{place}]") for place, part in enumerate(value))


def _text_of_part(part: object, place: str) -> str:
    expected = 'expected {"type": "text", "text": "..."}'
    if not isinstance(part, dict):
        raise PlaceError(place, f"is {shown(part)}; {expected}")
    if part.get("type") != "text":
        raise PlaceError(
            f"{place}.type", f"{given(part, 'type')}; the model accepts text only, {expected}"
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise PlaceError(f"{place}.text", f"{given(part, 'text')}; expected a string")
    return text


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text_of(value)


Text = Annotated[str, BeforeValidator(_text_of)]


class _Message(BaseModel):
    # Clients send back what they received, with fields such as refusal, audio, annotations.
    model_config = ConfigDict(strict=True, extra="ignore")


class InstructionMessage(_Message):
    """Instructions for the model; Qwen3 has only the role "system" for them."""

    role: Literal["system", "developer"]
    content: Text

    def for_template(self) -> dict[str, Any]:
        """The message in the format of a template."""
        return {"role": "system", "content": self.content}


class UserMessage(_Message):
    """A message of the user."""

    role: Literal["user"]
    content: Text

    def for_template(self) -> dict[str, Any]:
        """The message in the format of a template."""
        return {"role": "user", "content": self.content}


class CalledFunction(_Message):
    """Name and arguments (JSON text) of a call in the history."""

    name: str = Field(min_length=1)
    arguments: str = "{}"

    def for_template(self) -> dict[str, Any]:
        """Arguments as an object, which every template supports; other text stays text."""
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
    """An earlier output; content may be null or empty, as clients send it with tool calls."""

    role: Literal["assistant"]
    content: Annotated[str | None, BeforeValidator(_text_or_none)] = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[PastToolCall] | None = None

    def for_template(self) -> dict[str, Any]:
        """The message in the format of a template."""
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
        """The message in the format of a template."""
        message: dict[str, Any] = {"role": "tool", "content": self.content}
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            message["name"] = self.name
        return message


Message = Annotated[
    InstructionMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]
