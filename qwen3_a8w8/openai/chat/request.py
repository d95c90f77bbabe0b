"""Body of `POST /v1/chat/completions`."""

from __future__ import annotations

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
from qwen3_a8w8.openai.chat.messages import Message
from qwen3_a8w8.openai.chat.tool_choice import (
    NamedToolChoice,
    ToolChoice,
    check_chosen,
    check_names,
    check_tool_choice,
    structured_by_tools,
)
from qwen3_a8w8.openai.request import FieldError
from qwen3_a8w8.openai.sampling_fields import SamplingFields
from qwen3_a8w8.text.generation_defaults import GenerationDefaults
from qwen3_a8w8.text.structured import StructuredOutput
from qwen3_a8w8.text.tool_grammar import CallableTool


class FunctionDefinition(BaseModel):
    """A function that the model may call; `parameters` is a JSON schema."""

    model_config = ConfigDict(strict=True, extra="allow")

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """A tool definition; functions are the only kind."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["function"]
    function: FunctionDefinition
    _raw: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_raw(cls, value: Any, validate: ModelWrapValidatorHandler[Tool]) -> Tool:
        tool = validate(value)
        tool._raw = dict(value) if isinstance(value, dict) else tool.model_dump(exclude_unset=True)
        return tool

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
    thinking_budget: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _check_logprobs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise FieldError(
                f"top_logprobs is {self.top_logprobs}, but logprobs is not true; set logprobs",
                "top_logprobs",
            )
        return self

    @model_validator(mode="after")
    def _check_tools(self) -> ChatRequest:
        names = [tool.function.name for tool in self.tools or ()]
        check_names(names)
        check_chosen(self.tool_choice, names)
        return self

    @property
    def has_tools(self) -> bool:
        """Whether the prompt contains tools that the model may call."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def has_reasoning(self) -> bool:
        """Whether the response contains the think block."""
        return self.include_reasoning is not False

    def template_kwargs(self) -> dict[str, Any]:
        """Variables of the template; an explicit `enable_thinking` overrides an effort."""
        kwargs: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            kwargs["enable_thinking"] = self.reasoning_effort != "none"
        if self.thinking_budget == 0:
            kwargs["enable_thinking"] = False
        return kwargs | (self.chat_template_kwargs or {})

    @property
    def is_call_named(self) -> bool:
        """Whether the request names the one function to call."""
        return isinstance(self.tool_choice, NamedToolChoice)

    def template_messages(self) -> list[dict[str, Any]]:
        """The messages in the format of a chat template."""
        return [message.for_template() for message in self.messages]

    def template_tools(self) -> list[dict[str, Any]] | None:
        """The tool definitions as sent, or None."""
        if not self.has_tools or self.tools is None:
            return None
        return [tool.for_template() for tool in self.tools]

    def sampling_params(self, defaults: GenerationDefaults) -> SamplingParams:
        """Sampling parameters; a field of the request overrides the checkpoint's default.

        Raises:
            InvalidRequestError: a value is outside its range.
        """
        limit = self.max_completion_tokens
        return self._sampling_params(
            defaults,
            max_tokens=self.max_tokens if limit is None else limit,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            structured=self._structured(),
        )

    def _structured(self) -> StructuredOutput | None:
        tools = [
            CallableTool(tool.function.name, tool.function.parameters, bool(tool.function.strict))
            for tool in (self.tools or ())
            if self.has_tools
        ]
        return structured_by_tools(
            self.tool_choice,
            tools,
            self.structured_output(),
            has_parallel_calls=self.parallel_tool_calls is not False,
        )
