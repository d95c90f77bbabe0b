"""Bodies of `POST /api/chat` and `/api/generate`, and their conversion.

Source: Ollama's API documentation (docs/api.md of its repository).
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from qwen3_a8w8.config import MAX_LOGPROBS
from qwen3_a8w8.ollama.misplaced import (
    OPTIONS,
    check_chat_fields,
    check_generate_fields,
    check_options,
)
from qwen3_a8w8.openai.chat.request import ChatRequest, ReasoningEffort
from qwen3_a8w8.openai.completions.request import CompletionRequest
from qwen3_a8w8.openai.request import (
    FieldError,
    NestedModel,
    PlaceError,
    RequestModel,
    own_names,
    shown,
    validate_request,
)
from qwen3_a8w8.openai.sampling_fields import StopField

_NO_LIMIT = (-1, -2)
"""Values of `num_predict` that don't limit the output."""

OWN_NAMES = (
    *((rf"{field}\b", f"options.{option}") for option, field in OPTIONS.items()),
    (r"max_tokens\b", "options.num_predict"),
    (r"response_format\b", "format"),
)


def _as_integer(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_as_integer)]
"""An integer that may be written as 40.0: for Ollama every number of JSON is a float."""


class Options(NestedModel):
    """Sampling settings; those of a runtime that isn't here (num_gpu ...) have no effect."""

    temperature: float | None = None
    top_k: Whole | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: Whole | None = None
    stop: StopField = None
    num_predict: Annotated[Whole, Field(ge=-2)] | None = None
    num_ctx: Whole | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None

    @model_validator(mode="after")
    def _check_refused(self) -> Options:
        try:
            check_options(self.model_extra or {})
        except FieldError as error:
            raise FieldError(f"options.{error}", f"options.{error.param}") from None
        return self


class CalledFunction(BaseModel):
    """A call in the history; its arguments are an object."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str = Field(min_length=1)
    arguments: dict[str, Any] = Field(default_factory=dict)


class ToolCall(BaseModel):
    """A call in the history."""

    model_config = ConfigDict(strict=True, extra="ignore")

    id: str | None = None
    function: CalledFunction


def _no_images(value: object) -> object:
    if value:
        raise PlaceError("", f"is {shown(value)}; the model reads text only, remove it")
    return None


NoImages = Annotated[None, BeforeValidator(_no_images)]


class Message(BaseModel):
    """One turn."""

    model_config = ConfigDict(strict=True, extra="ignore")

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: NoImages = None

    def for_chat(self) -> dict[str, Any]:
        """The message as one of chat completions."""
        message: dict[str, Any] = {"role": self.role, "content": self.content or ""}
        if self.role == "assistant" and self.thinking:
            message["reasoning_content"] = self.thinking
        if self.role == "assistant" and self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": json.dumps(call.function.arguments, ensure_ascii=False),
                    },
                }
                for call in self.tool_calls
            ]
        if self.role == "tool":
            message |= {"name": self.tool_name, "tool_call_id": self.tool_call_id}
        return message


class OllamaRequest(RequestModel):
    """What both bodies have."""

    model: str
    format: Literal["json", ""] | dict[str, Any] | None = None
    options: Options | None = None
    stream: bool | None = None
    think: bool | ReasoningEffort | Literal[""] | None = None
    keep_alive: str | int | float | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @property
    def is_stream(self) -> bool:
        """Whether the response is streamed: by default it is."""
        return self.stream is not False

    @property
    def model_name(self) -> str:
        """The model without the tag that stands for the only one there is."""
        return self.model.removesuffix(":latest")

    def _fields(self) -> dict[str, Any]:
        """Fields that chat and text completions share."""
        options = self.options or Options()
        fields: dict[str, Any] = {
            field: getattr(options, option) for option, field in OPTIONS.items()
        }
        if options.num_predict not in (None, *_NO_LIMIT):
            fields["max_tokens"] = options.num_predict
        if isinstance(self.format, dict):
            fields["response_format"] = {"type": "json_object", "schema": self.format}
        elif self.format:
            fields["response_format"] = {"type": "json_object"}
        return fields | {"model": self.model_name, "stream": self.is_stream}

    def _to_chat(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
    ) -> ChatRequest:
        fields = self._fields() | {"messages": messages, "tools": tools}
        fields["continue_final_message"] = _is_begun(messages[-1])
        if self.logprobs:
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        if self.think is not None:
            thinks = bool(self.think) and self.think != "none"
            fields["chat_template_kwargs"] = {"enable_thinking": thinks}
        with own_names(OWN_NAMES):
            return validate_request(ChatRequest, fields)


class OllamaChatRequest(OllamaRequest):
    """Body of `POST /api/chat`. Without messages it asks for the model to be loaded."""

    messages: list[Message] = Field(default_factory=list)
    tools: list[dict[str, Any]] | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> OllamaChatRequest:
        check_chat_fields(self.model_extra or {})
        return self

    def to_chat(self) -> ChatRequest:
        """Converts the request; an assistant's last message is continued.

        Raises:
            InvalidRequestError: a value isn't supported; `param` has its name in this API.
        """
        messages = [message.for_chat() for message in self.messages]
        return self._to_chat(messages, self.tools)


class OllamaGenerateRequest(OllamaRequest):
    """Body of `POST /api/generate`. Without a prompt it asks for the model to be loaded."""

    prompt: str = ""
    system: str | None = None
    raw: bool | None = None
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: NoImages = None

    @model_validator(mode="after")
    def _check_supported(self) -> OllamaGenerateRequest:
        for name, remedy in (
            ("suffix", "insertion isn't supported"),
            ("template", "only the checkpoint's template is run; render the prompt and set raw"),
            ("context", "send the conversation to /api/chat"),
        ):
            if getattr(self, name):
                raise FieldError(f"{name} is set, which isn't supported; {remedy}", name)
        if self.raw and self.logprobs:
            raise FieldError("logprobs is set with raw; use /v1/completions", "logprobs")
        if self.raw and self.system:
            raise FieldError(
                "system is set with raw, which takes the prompt as it is; put it into the prompt",
                "system",
            )
        check_generate_fields(self.model_extra or {})
        return self

    def to_chat(self) -> ChatRequest:
        """Converts a request whose prompt is put into the chat template; errors as in chat."""
        messages = [{"role": "user", "content": self.prompt}]
        if self.system:
            messages.insert(0, {"role": "system", "content": self.system})
        return self._to_chat(messages, None)

    def to_completion(self) -> CompletionRequest:
        """Converts a request whose prompt is taken as it is (`raw`); errors as in chat."""
        fields = {"max_tokens": _UNLIMITED} | self._fields() | {"prompt": self.prompt}
        with own_names(OWN_NAMES):
            return validate_request(CompletionRequest, fields)


_UNLIMITED = 2**31 - 1
"""Clamped to what fits."""


def _is_begun(message: dict[str, Any]) -> bool:
    """Whether a last message is an answer's beginning, which Ollama continues."""
    has_text = bool(message["content"] or message.get("reasoning_content"))
    return message["role"] == "assistant" and has_text and not message.get("tool_calls")
