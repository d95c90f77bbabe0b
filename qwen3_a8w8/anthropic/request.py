"""Bodies of `POST /v1/messages` and `/v1/messages/count_tokens`, and their conversion.

A request becomes a chat request; `blocks.py` converts the messages. Source: Anthropic's Messages
API, version 2023-06-01.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from qwen3_a8w8.anthropic.blocks import Message, Text, chat_messages
from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.chat.request import ChatRequest
from qwen3_a8w8.openai.request import NestedModel, RequestModel, own_names, validate_request

OWN_NAMES = (
    (r"tools\[(\d+)\]\.function\.parameters\b", r"tools[\1].input_schema"),
    (r"tools\[(\d+)\]\.function\b", r"tools[\1]"),
    (r"tool_choice\.function\b", "tool_choice"),
    (r"response_format(\.json_schema)?\b", "output_config.format"),
    (r"stop\b", "stop_sequences"),
    (r"continue_final_message\b", "messages"),
    (r"thinking_budget\b", "thinking.budget_tokens"),
    (r"top_logprobs\b", "top_logprobs"),
)
"""Path prefixes in a chat request, and their names in this API."""


class AnthropicTool(BaseModel):
    """A tool; those with a type other than `custom` are run, or known, by Anthropic only."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: str | None = None
    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

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
        thinks = self.thinking is not None and self.thinking.type != "disabled"
        given = (self.model_extra or {}).get("chat_template_kwargs")
        kwargs = {"enable_thinking": thinks} | (given if isinstance(given, dict) else {})
        fields: dict[str, Any] = {"chat_template_kwargs": kwargs}
        if thinks and self.thinking is not None and self.thinking.budget_tokens:
            fields["thinking_budget"] = self.thinking.budget_tokens
        return fields


class MessagesRequest(CountTokensRequest):
    """A request for a message."""

    max_tokens: Annotated[int, Field(ge=1)]


_OWN_FIELDS = frozenset(CountTokensRequest.model_fields)


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
