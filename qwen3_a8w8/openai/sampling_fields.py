"""Request fields common to chat and text completions, and their conversion to `SamplingParams`.

Every field may be null or missing; the default then comes from the checkpoint's
generation_config.json if that has one. `SamplingParams` validates ranges. Structured output is
requested with OpenAI's `response_format`, vLLM's `structured_outputs` or its older `guided_*`
fields; a request may use one of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.openai.request import FieldError, PlaceError, RequestModel, shown
from qwen3_a8w8.text.generation_defaults import GenerationDefaults
from qwen3_a8w8.text.structured import StructuredOutput

_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}


class JsonSchemaFormat(BaseModel):
    """A named JSON schema."""

    model_config = ConfigDict(strict=True, extra="allow")

    name: str | None = None
    schema_: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """Structured output in OpenAI's format."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _check(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise FieldError(
                "response_format has type 'json_schema' but no json_schema; add one",
                "response_format.json_schema",
            )
        return self


class StructuredOutputsField(BaseModel):
    """Structured output in vLLM's format."""

    model_config = ConfigDict(strict=True, extra="allow")

    json_: dict[str, Any] | bool | str | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: Any = None


class StructuredFields(RequestModel):
    """Fields of which at most one may be set."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputsField | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    @model_validator(mode="after")
    def _check_structured(self) -> StructuredFields:
        names = ("response_format", "structured_outputs", *_GUIDED)
        given = [name for name in names if getattr(self, name) is not None]
        if given[:1] == ["response_format"] and self.response_format_type == "text":
            del given[0]
        if len(given) > 1:
            raise FieldError(
                f"{given[0]} and {given[1]} both request structured output; remove one of them",
                given[1],
            )
        tag = self.structured_outputs
        if tag is not None and tag.structural_tag is not None:
            raise FieldError(
                "structured_outputs has a structural_tag, which isn't supported; use json, "
                "regex, choice or grammar, or tools with tool_choice 'required'",
                "structured_outputs.structural_tag",
            )
        return self

    @property
    def response_format_type(self) -> str:
        """Type of `response_format`; "text" without one."""
        return "text" if self.response_format is None else self.response_format.type

    def structured_output(self) -> StructuredOutput | None:
        """The structured output that the fields request, or None.

        Raises:
            InvalidRequestError: it is malformed, too long or nested too deeply.
        """
        if self.response_format_type == "json_object":
            return StructuredOutput(json_object=True, param="response_format")
        if self.response_format is not None and self.response_format.json_schema is not None:
            schema = self.response_format.json_schema
            return StructuredOutput(
                json=schema.schema_,
                is_lenient=schema.strict is False,
                param="response_format",
            )
        if self.structured_outputs is not None:
            kinds = self.structured_outputs.model_dump(
                by_alias=True, include={"json_", "json_object", "regex", "choice", "grammar"}
            )
            given = {name: value for name, value in kinds.items() if value is not None}
            return StructuredOutput.from_fields(given, param="structured_outputs")
        for name, kind in _GUIDED.items():
            value = getattr(self, name)
            if value is not None:
                return StructuredOutput.from_fields({kind: value}, param=name)
        return None


def _as_list(value: object) -> object:
    if value is not None and not isinstance(value, str | list):
        raise PlaceError("", f"is {shown(value)}; expected a string or a list of strings")
    return [value] if isinstance(value, str) else value


def _by_token_id(value: object) -> object:
    """Converts keys to integers: JSON has string keys only, Python clients may use integers."""
    if not isinstance(value, dict):
        return value
    biases = {}
    for key, bias in value.items():
        text = str(key)
        if not (text.isascii() and text.isdecimal() and len(text) <= 18):
            raise ValueError(f"key {text[:40]!r} isn't a token id, expected digits only")
        biases[int(text)] = bias
    return biases


class StreamOptions(BaseModel):
    """What a stream contains besides the text."""

    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(StructuredFields):
    """Common fields; names and meanings are OpenAI's where it has the field, otherwise vLLM's."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    strict_max_tokens: bool | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = None
    seed: int | None = None
    stop: Annotated[list[str] | None, BeforeValidator(_as_list)] = None
    stop_token_ids: list[int] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[int, float] | None, BeforeValidator(_by_token_id)] = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = None
    timeout_s: float | None = None
    cache_salt: str | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    prompt_logprobs: int | None = None

    @model_validator(mode="after")
    def _check_common(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise FieldError(
                "stream_options is set, but stream is not true; set stream or remove "
                "stream_options",
                "stream_options",
            )
        if self.prompt_logprobs is not None and self.stream:
            raise FieldError(
                "prompt_logprobs is set, but streams don't return them; remove stream or "
                "prompt_logprobs",
                "prompt_logprobs",
            )
        return self

    @property
    def is_stream(self) -> bool:
        """Whether the response is streamed."""
        return bool(self.stream)

    @property
    def num_choices(self) -> int:
        """Choices per prompt."""
        return 1 if self.n is None else self.n

    def context_options(self) -> dict[str, Any]:
        """What the response contains besides its text: fields of `ResponseContext`."""
        options = self.stream_options or StreamOptions()
        return {
            "is_streamed": self.is_stream,
            "has_usage": bool(options.include_usage),
            "has_continuous_usage": bool(options.continuous_usage_stats),
            "has_token_ids": bool(self.return_token_ids),
            "has_prompt_logprobs": self.prompt_logprobs is not None,
        }

    def engine_options(self) -> dict[str, Any]:
        """Engine options besides prompt and sampling: fields of `EngineRequest`."""
        options = {name: getattr(self, name) for name in _ENGINE_OPTIONS}
        return {name: value for name, value in options.items() if value is not None}

    def _sampling_params(
        self,
        defaults: GenerationDefaults,
        *,
        max_tokens: int | None,
        logprobs: int | None,
        structured: StructuredOutput | None,
    ) -> SamplingParams:
        fields: dict[str, Any] = {
            "structured": structured,
            "max_tokens": max_tokens,
            "logprobs": logprobs,
            **defaults.sampling_fields(),
        }
        for name in _COPIED_FIELDS:
            value = getattr(self, name)
            if value is not None:
                fields[name] = value
        for name in ("stop", "stop_token_ids"):
            fields[name] = tuple(getattr(self, name) or ())
        return SamplingParams(**fields)


_ENGINE_OPTIONS = ("priority", "timeout_s", "cache_salt")

_COPIED_FIELDS = (
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "ignore_eos",
    "skip_special_tokens",
    "prompt_logprobs",
)
