"""Body of `POST /v1/chat/completions`: messages, tools, and their sampling parameters."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    model_validator,
)

from qwen3_a8w8.config import MAX_LOGPROBS
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.openai.chat.tool_choice import (
    NamedToolChoice,
    ToolChoice,
    check_chosen,
    check_names,
    check_tool_choice,
    structured_by_tools,
)
from qwen3_a8w8.openai.request import FieldError, PlaceError, given, shown
from qwen3_a8w8.openai.sampling_fields import SamplingFields
from qwen3_a8w8.text.generation_defaults import GenerationDefaults
from qwen3_a8w8.text.structured import StructuredOutput
from qwen3_a8w8.text.tool_grammar import CallableTool


def _text_of(value: object, kinds: Collection[str] = ("text",)) -> str:
    """Text of a content: a string, or a list of parts of these types."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PlaceError("", f"is {shown(value)}; expected a string or a list of parts")
    return "\n".join(_text_of_part(part, f"[{place}]", kinds) for place, part in enumerate(value))


def _text_of_part(part: object, place: str, kinds: Collection[str]) -> str:
    expected = 'expected {"type": "text", "text": "..."}'
    if not isinstance(part, dict):
        raise PlaceError(place, f"is {shown(part)}; {expected}")
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        raise PlaceError(
            f"{place}.type", f"{given(part, 'type')}; the model accepts text only, {expected}"
        )
    text = part.get(kind)  # of a part of type text or refusal: the field has its type's name
    if not isinstance(text, str):
        raise PlaceError(f"{place}.{kind}", f"{given(part, kind)}; expected a string")
    return text


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text_of(value, ("text", "refusal"))


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


class FunctionDefinition(BaseModel):
    """A function that the model may call; `parameters` is a JSON schema."""

    model_config = ConfigDict(strict=True, extra="allow")

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """A tool definition. Functions can be called; tools of another type are left out."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: str = Field(min_length=1)
    function: FunctionDefinition | None = None
    _raw: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_raw(cls, value: Any, validate: ModelWrapValidatorHandler[Tool]) -> Tool:
        tool = validate(value)
        tool._raw = dict(value) if isinstance(value, dict) else tool.model_dump(exclude_unset=True)
        return tool

    @model_validator(mode="after")
    def _check_function(self) -> Tool:
        if self.type == "function" and self.function is None:
            raise PlaceError(".function", "is missing; it is required")
        return self

    def for_template(self) -> dict[str, Any]:
        """The definition as sent, in the client's order of keys."""
        return self._raw


def _refuse_template(value: object) -> object:
    if value is not None:
        raise ValueError(
            "a template is a program, and only the checkpoint's is run; remove it, or set "
            "variables of the checkpoint's template in chat_template_kwargs"
        )
    return value


_BUDGETS = ("thinking_budget", "thinking_token_budget", "thinking_budget_tokens")
"""Names of one field: Qwen's, vLLM's and llama.cpp's."""

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""Qwen3's thinking is either on or off: "none" switches it off, every other value on."""


class ChatRequest(SamplingFields):
    """A chat completion request."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Annotated[ToolChoice | None, BeforeValidator(check_tool_choice)] = None
    parallel_tool_calls: bool | None = None
    chat_template: Annotated[None, BeforeValidator(_refuse_template)] = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    stop_in_reasoning: bool | None = None
    thinking_budget: Annotated[int, Field(ge=0)] | None = None
    thinking_token_budget: Annotated[int, Field(ge=-1)] | None = None
    thinking_budget_tokens: Annotated[int, Field(ge=-1)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @model_validator(mode="after")
    def _check_continued(self) -> ChatRequest:
        if not self.continue_final_message:
            return self
        if self.add_generation_prompt:
            raise FieldError(
                "continue_final_message and add_generation_prompt are both true, but the answer "
                "either continues the last message or begins a new one; remove one of them",
                "continue_final_message",
            )
        last = self.messages[-1]
        if not isinstance(last, AssistantMessage) or last.tool_calls:
            raise FieldError(
                "continue_final_message is true, but the last message is "
                f"{'one with tool calls' if isinstance(last, AssistantMessage) else last.role!r}; "
                "only an assistant's text can be continued",
                "continue_final_message",
            )
        return self

    @model_validator(mode="after")
    def _check_budget(self) -> ChatRequest:
        given_budgets = [name for name in _BUDGETS if getattr(self, name) is not None]
        if len({getattr(self, name) for name in given_budgets}) > 1:
            raise FieldError(
                f"{' and '.join(given_budgets)} are names of the same limit, but have different "
                "values; remove one of them",
                given_budgets[1],
            )
        return self

    @model_validator(mode="after")
    def _check_logprobs(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise FieldError(
                f"top_logprobs is {self.top_logprobs}, but logprobs is not true; set logprobs",
                "top_logprobs",
            )
        return self

    @model_validator(mode="after")
    def _check_tools(self) -> ChatRequest:
        if self.tools or self.tool_choice:
            places = {
                place: tool.function.name
                for place, tool in enumerate(self.tools or ())
                if tool.type == "function" and tool.function is not None
            }
            check_names(places)
            check_chosen(self.tool_choice, list(places.values()), self.skipped_tools)
        return self

    @property
    def functions(self) -> list[FunctionDefinition]:
        """The tools that can be called."""
        tools = [tool for tool in self.tools or () if tool.type == "function"]
        return [tool.function for tool in tools if tool.function is not None]

    @property
    def skipped_tools(self) -> tuple[str, ...]:
        """Types of the tools that this server doesn't run and leaves out, each once."""
        types = (tool.type for tool in self.tools or () if tool.type != "function")
        return tuple(dict.fromkeys(types))

    @property
    def has_tools(self) -> bool:
        """Whether the prompt contains tools that the model may call."""
        return bool(self.functions) and self.tool_choice != "none"

    @property
    def has_reasoning(self) -> bool:
        """Whether the response contains the think block."""
        return self.include_reasoning is not False

    def template_kwargs(self) -> dict[str, Any]:
        """Variables of the template; an explicit `enable_thinking` overrides an effort."""
        kwargs: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            kwargs["enable_thinking"] = self.reasoning_effort != "none"
        if self.max_thinking_tokens == 0:
            kwargs["enable_thinking"] = False
        return kwargs | (self.chat_template_kwargs or {})

    @property
    def max_thinking_tokens(self) -> int | None:
        """Most tokens of the think block; None: no limit."""
        budgets = (getattr(self, name) for name in _BUDGETS)
        budget = next((each for each in budgets if each is not None), None)
        return None if budget == -1 else budget

    @property
    def has_generation_prompt(self) -> bool:
        """Whether the prompt ends with the start of an assistant's message."""
        return self.add_generation_prompt is not False and not self.continue_final_message

    @property
    def is_call_named(self) -> bool:
        """Whether the request names the one function to call."""
        return isinstance(self.tool_choice, NamedToolChoice)

    @property
    def is_call_required(self) -> bool:
        """Whether the output has to be a call."""
        return self.is_call_named or self.tool_choice == "required"

    @property
    def max_output_tokens(self) -> int | None:
        """Most output tokens that the request asks for."""
        limit = self.max_completion_tokens
        return self.max_tokens if limit is None else limit

    def template_messages(self) -> list[dict[str, Any]]:
        """The messages in the format of a chat template."""
        return [message.for_template() for message in self.messages]

    def template_tools(self) -> list[dict[str, Any]] | None:
        """The tool definitions as sent, or None."""
        if not self.has_tools or self.tools is None:
            return None
        return [tool.for_template() for tool in self.tools if tool.type == "function"]

    def sampling_params(self, defaults: GenerationDefaults) -> SamplingParams:
        """Sampling parameters; a field of the request overrides the checkpoint's default.

        Raises:
            InvalidRequestError: a value is outside its range.
        """
        return self._sampling_params(
            defaults,
            max_tokens=self.max_output_tokens,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            structured=self._structured(),
        )

    def _structured(self) -> StructuredOutput | None:
        if not self.has_tools:
            return self.structured_output()
        tools = [
            CallableTool(function.name, function.parameters, bool(function.strict))
            for function in self.functions
        ]
        return structured_by_tools(
            self.tool_choice,
            tools,
            self.structured_output(),
            has_parallel_calls=self.parallel_tool_calls is not False,
        )
