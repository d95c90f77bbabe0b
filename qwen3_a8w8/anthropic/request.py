"""Bodies of `POST /v1/messages` and `/v1/messages/count_tokens`, and their conversion.

A request becomes a chat request; `blocks.py` converts the messages. Source: Anthropic's Messages
API, version 2023-06-01.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qwen3_a8w8.anthropic.blocks import Message, Text, chat_messages
from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.chat.request import ChatRequest
from qwen3_a8w8.openai.foreign_fields import check_refused
from qwen3_a8w8.openai.request import (
    NestedModel,
    PlaceError,
    RequestModel,
    own_names,
    validate_request,
)

OWN_NAMES = (
    (r"tools\[(\d+)\]\.function\.parameters\b", r"tools[\1].input_schema"),
    (r"tools\[(\d+)\]\.function\b", r"tools[\1]"),
    (r"tool_choice\.function\b", "tool_choice"),
    (r"response_format(\.json_schema)?\b", "output_config.format"),
    (r"stop\b", "stop_sequences"),
    (r"thinking_budget\b", "thinking.budget_tokens"),
)
"""Path prefixes in a chat request, and their names in this API."""

_NOT_SHOWN = "a message doesn't show it; use /v1/chat/completions"
_PREFILLED = "end messages with the assistant's text that is to be continued"

_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    # This API has fields of its own for them.
    "add_generation_prompt": ((True,), _PREFILLED),
    "continue_final_message": ((False,), _PREFILLED),
    "max_completion_tokens": ((), "use max_tokens"),
    "parallel_tool_calls": ((True,), "use tool_choice.disable_parallel_tool_use"),
    "reasoning_effort": ((), "use thinking"),
    "response_format": ((), "use output_config.format"),
    "stop": (([],), "use stop_sequences"),
    "thinking_budget": ((), "use thinking.budget_tokens"),
    "thinking_budget_tokens": ((), "use thinking.budget_tokens"),
    "thinking_token_budget": ((), "use thinking.budget_tokens"),
    # A message has no place for them.
    "logprobs": ((False,), _NOT_SHOWN),
    "n": ((1,), "a message is one answer; use /v1/chat/completions"),
    "prompt_logprobs": ((), _NOT_SHOWN),
    "return_token_ids": ((False,), _NOT_SHOWN),
    "timings_per_token": ((False,), _NOT_SHOWN),
    "top_logprobs": ((0,), _NOT_SHOWN),
    # Anthropic's
    "thread": ((), "conversations aren't kept here; send all messages"),
}
"""Fields that would have no effect: values that ask for nothing, and what to do instead."""


class AnthropicTool(BaseModel):
    """A tool; those with a type other than `custom` are run, or known, by Anthropic only."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: str | None = None
    name: str | None = Field(default=None, min_length=1)  # sets of tools have none
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _check_name(self) -> AnthropicTool:
        if self.is_function and self.name is None:
            raise PlaceError(".name", "is missing; it is required")
        return self

    @property
    def is_function(self) -> bool:
        """Whether it has a schema of its own."""
        return self.type in (None, "custom")


class AnthropicToolChoice(BaseModel):
    """Which tool is called."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(NestedModel):
    """Whether the model thinks, and for how long."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=0)] | None = None
    display: str | None = None


class OutputFormat(NestedModel):
    """Structured output."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(NestedModel):
    """Effort has no counterpart: Qwen3's thinking is on or off."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountTokensRequest(RequestModel):
    """What decides the prompt of a message.

    Sampling fields that Anthropic doesn't have (seed, min_p, chat_template_kwargs ...) are those of
    chat completions.
    """

    model: str | None = None
    messages: list[Message] = Field(min_length=1)
    system: Text | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    service_tier: str | None = None
    cache_control: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> CountTokensRequest:
        check_refused(self.model_extra or {}, _REFUSED)
        return self

    @property
    def is_stream(self) -> bool:
        """Whether the response is streamed."""
        return bool(self.stream)

    @property
    def skipped_tools(self) -> tuple[str, ...]:
        """Types of the tools that this server doesn't run and leaves out, each once."""
        types = (tool.type or "" for tool in self.tools or () if not tool.is_function)
        return tuple(dict.fromkeys(types))

    def unknown_fields(self) -> tuple[str, ...]:
        """Fields that neither this API nor chat completions support."""
        return tuple(n for n in super().unknown_fields() if n not in ChatRequest.model_fields)

    def to_chat(self) -> ChatRequest:
        """Converts the request to an equivalent chat request.

        Without `thinking` the model doesn't think, as clients of this API expect.

        Raises:
            InvalidRequestError: a value isn't supported; `param` has its name in this API.
        """
        fields = {
            name: value
            for name, value in (self.model_extra or {}).items()
            if name not in _OWN_FIELDS
        }
        for name in ("model", "max_tokens", "stream", "temperature", "top_p", "top_k"):
            fields[name] = getattr(self, name)
        messages = chat_messages(self.messages, self.system)
        fields |= {"messages": messages, "stop": self.stop_sequences}
        if messages[-1]["role"] == "assistant":
            _check_continued(messages[-1])
            fields["continue_final_message"] = True
        functions = [tool for tool in self.tools or () if tool.is_function]
        if functions:
            fields["tools"] = [_chat_tool(tool) for tool in functions]
        if self.tool_choice is not None:
            fields |= _chat_tool_choice(self.tool_choice)
        fields |= self._thinking_fields()
        output = (self.output_config and self.output_config.format) or self.output_format
        if output is not None:
            schema = {"name": "output", "schema": output.schema_}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        with own_names(OWN_NAMES):
            return validate_request(ChatRequest, fields)

    def _thinking_fields(self) -> dict[str, Any]:
        thinking = self.thinking or Thinking(type="disabled")
        thinks = thinking.type != "disabled" and thinking.budget_tokens != 0
        kwargs: Any = {"enable_thinking": thinks}
        given = (self.model_extra or {}).get("chat_template_kwargs")
        if isinstance(given, dict):
            kwargs |= given
        elif given is not None:
            kwargs = given  # refused by its name
        return {
            "chat_template_kwargs": kwargs,
            "thinking_budget": thinking.budget_tokens if thinks else None,
        }


class MessagesRequest(CountTokensRequest):
    """A request for a message."""

    max_tokens: Annotated[int, Field(ge=1)]


_OWN_FIELDS = frozenset(CountTokensRequest.model_fields)


def _check_continued(message: dict[str, Any]) -> None:
    """Checks that the last turn is one that an answer can continue."""
    if message.get("tool_calls"):
        raise InvalidRequestError(
            "messages ends with a tool_use block; add the user's turn with its tool_result",
            param="messages",
        )
    if not message["content"] and not message.get("reasoning_content"):
        raise InvalidRequestError(
            "messages ends with an assistant's turn that has no text to continue; remove it, or "
            "add text",
            param="messages",
        )


def _chat_tool(tool: AnthropicTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema or {"type": "object", "properties": {}}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _chat_tool_choice(choice: AnthropicToolChoice) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    if choice.type == "tool":
        if choice.name is None:
            raise InvalidRequestError(
                "tool_choice.name is missing; type 'tool' requires it", param="tool_choice.name"
            )
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    else:
        fields["tool_choice"] = {"any": "required"}.get(choice.type, choice.type)
    return fields
