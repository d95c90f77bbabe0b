"""Body of `POST /v1/responses`, and its conversion to a chat request.

Fields that chat completions support are converted, the others are rejected by name.
`items.py` converts the items of `input`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from qwen3_a8w8.config import MAX_LOGPROBS
from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.chat.request import ChatRequest
from qwen3_a8w8.openai.foreign_fields import check_refused
from qwen3_a8w8.openai.request import (
    FieldError,
    NestedModel,
    RequestModel,
    own_names,
    shown,
    validate_request,
)
from qwen3_a8w8.openai.responses.items import Item, messages_of
from qwen3_a8w8.openai.responses.tools import chat_tool, custom_names

_SAME_IN_CHAT = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "parallel_tool_calls",
    "metadata",
    "user",
)
OWN_NAMES = (
    (r"messages\b", "input"),
    (r"(tools\[\d+\]|tool_choice)\.function\b", r"\1"),
    (r"response_format(\.json_schema)?\b", "text.format"),
    (r"reasoning_effort\b", "reasoning.effort"),
    (r"max_completion_tokens\b", "max_output_tokens"),
)
"""Path prefixes in a chat request, and their names in this API."""

_REFUSED = {
    "access_programs": "there are none here",
    "background_options": "a background response starts at once",
    "context_management": "the context isn't shortened; do so yourself",
    "image": "the model writes text only",
    "conversation": "send the conversation in input, or previous_response_id",
    "prompt": "templates aren't stored here; send the text in input",
}

_REFUSED_OF_CHAT = {
    "n": "a response has one output; send several requests",
    "timings_per_token": "use /v1/chat/completions",
    "prompt_logprobs": "use /v1/chat/completions",
}
"""Fields of chat completions whose output a response has no place for."""


class Reasoning(NestedModel):
    """Reasoning options."""

    effort: str | None = None
    summary: str | None = None


class TextOptions(NestedModel):
    """Format of the text."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


def _as_items(value: object) -> object:
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise ValueError("expected a string or a list of items")
    return value


class ResponsesRequest(RequestModel):
    """A response request; `input` is always a list of items once parsed.

    Sampling fields that OpenAI doesn't have here (top_k, seed, stop, thinking_budget ...) are
    those of chat completions.
    """

    model: str | None = None
    input: Annotated[list[Item], BeforeValidator(_as_items)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    truncation: str | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    background: bool | None = None
    access_programs: Any = None
    background_options: Any = None
    context_management: Any = None
    conversation: Any = None
    image: Any = None
    prompt: Any = None
    metadata: dict[str, Any] | None = None
    user: str | None = None
    service_tier: str | None = None
    stream_options: dict[str, Any] | None = None
    max_tool_calls: int | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    @model_validator(mode="after")
    def _check_supported(self) -> ResponsesRequest:
        for name, remedy in _REFUSED.items():
            if getattr(self, name):
                raise FieldError(f"{name} is set, but not supported; {remedy}", name)
        for name, remedy in _REFUSED_OF_CHAT.items():
            value = (self.model_extra or {}).get(name)
            if value is not None and value is not False and not (name == "n" and value == 1):
                raise FieldError(f"{name} is set, but not supported; {remedy}", name)
        check_refused(
            {n: v for n, v in (self.model_extra or {}).items() if n not in ChatRequest.model_fields}
        )
        if self.background and (self.stream or self.store is False):
            other = "stream" if self.stream else "store"
            raise FieldError(
                f"background is true and {other} is {shown(getattr(self, other))}; a background "
                "response is stored and polled, leave them out",
                other,
            )
        if self.truncation not in (None, "disabled"):
            raise FieldError(
                f"truncation is {self.truncation!r}, only 'disabled' is supported; shorten the "
                "input yourself",
                "truncation",
            )
        return self

    @property
    def is_stream(self) -> bool:
        """Whether the response is streamed."""
        return bool(self.stream)

    @property
    def is_stored(self) -> bool:
        """Whether the response may be stored for a later `previous_response_id`."""
        return self.store is not False

    @property
    def skipped_tools(self) -> tuple[str, ...]:
        """Types of the tools that this server doesn't run and leaves out, each once."""
        types = (str(tool.get("type")) for tool in self.tools or ())
        return tuple(dict.fromkeys(kind for kind in types if kind not in ("function", "custom")))

    @property
    def custom_tools(self) -> frozenset[str]:
        """Names of the tools whose input is free text."""
        return custom_names(self.tools or ())

    def unknown_fields(self) -> tuple[str, ...]:
        """Fields that neither responses nor chat completions support."""
        return tuple(n for n in super().unknown_fields() if n not in ChatRequest.model_fields)

    def to_chat(self, earlier: list[Item]) -> ChatRequest:
        """Converts the request to an equivalent chat request.

        Args:
            earlier: items of the conversation before this input.

        Raises:
            InvalidRequestError: the type of an item or a tool isn't supported.
        """
        raw = {
            name: getattr(self, name) for name in _SAME_IN_CHAT if getattr(self, name) is not None
        }
        raw["messages"] = messages_of(
            [*earlier, *self.input], self.instructions, num_earlier=len(earlier)
        )
        if self.top_logprobs or "message.output_text.logprobs" in (self.include or ()):
            raw |= {"logprobs": True, "top_logprobs": self.top_logprobs or 0}
        if self.max_output_tokens is not None:
            raw["max_completion_tokens"] = self.max_output_tokens
        if self.reasoning is not None and self.reasoning.effort is not None:
            raw["reasoning_effort"] = self.reasoning.effort
        if self.tools:
            raw["tools"] = [chat_tool(tool, place) for place, tool in enumerate(self.tools)]
        if self.tool_choice is not None:
            raw["tool_choice"] = _chat_tool_choice(self.tool_choice)
        if self.text is not None and self.text.format is not None:
            raw["response_format"] = _chat_format(self.text.format)
        chat_fields = {
            name: value
            for name, value in (self.model_extra or {}).items()
            if name in ChatRequest.model_fields and name not in raw
        }
        with own_names(OWN_NAMES, sent=chat_fields):
            return validate_request(ChatRequest, raw | chat_fields)


def _chat_tool_choice(choice: str | dict[str, Any]) -> object:
    if isinstance(choice, str) and choice in ("none", "auto", "required"):
        return choice
    name = choice.get("name") if isinstance(choice, dict) else None
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind in ("function", "custom") and isinstance(name, str):
        return {"type": "function", "function": {"name": name}}
    path: str = "tool_choice"
    value: object = choice
    if kind in ("function", "custom"):
        path, value = "tool_choice.name", name
    elif kind is not None:
        path, value = "tool_choice.type", kind
    raise InvalidRequestError(
        f'{path} is {shown(value)}; expected "none", "auto", "required" or '
        '{"type": "function", "name": "..."}',
        param=path,
    )


def _chat_format(text_format: dict[str, Any]) -> dict[str, Any]:
    if text_format.get("type") != "json_schema":
        return text_format
    schema = {k: v for k, v in text_format.items() if k != "type"}
    return {"type": "json_schema", "json_schema": schema}
