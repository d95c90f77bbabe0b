"""The request fields that chat and text completions share, and their way to `SamplingParams`.

Every field may be null or missing; the checkpoint's generation_config.json then
decides, where it has a say. Ranges are `SamplingParams`' own business.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.openai.field_errors import FieldError, PlaceError, shown
from qwen3_a8w8.openai.structured_fields import StructuredFields
from qwen3_a8w8.text.generation_defaults import GenerationDefaults
from qwen3_a8w8.text.structured import StructuredOutput


def _as_list(value: object) -> object:
    if value is not None and not isinstance(value, str | list):
        raise PlaceError("", f"is {shown(value)}; expected a string or a list of strings")
    return [value] if isinstance(value, str) else value


def _by_token_id(value: object) -> object:
    """JSON has string keys only; a client in Python may have used numbers."""
    if not isinstance(value, dict):
        return value
    biases = {}
    for key, bias in value.items():
        text = str(key)
        if not (text.isascii() and text.isdecimal() and len(text) <= 18):
            raise ValueError(f"key {text[:40]!r} is no token id, expected digits only")
        biases[int(text)] = bias
    return biases


class StreamOptions(BaseModel):
    """What a stream tells beside the text."""

    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(StructuredFields):
    """Common fields; names and meanings are OpenAI's, the rest are vLLM's."""

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
                "stream_options is set, but stream is not true; set stream or leave it out",
                "stream_options",
            )
        if self.prompt_logprobs is not None and self.stream:
            raise FieldError(
                "prompt_logprobs is set, but a stream doesn't tell them; leave out stream or "
                "prompt_logprobs",
                "prompt_logprobs",
            )
        return self

    @property
    def is_stream(self) -> bool:
        """The answer is to be streamed."""
        return bool(self.stream)

    @property
    def num_choices(self) -> int:
        """Answers per prompt."""
        return 1 if self.n is None else self.n

    def answer_options(self) -> dict[str, bool]:
        """What the answer is to tell beside its text: fields of `AnsweredRequest`."""
        options = self.stream_options or StreamOptions()
        return {
            "has_usage": bool(options.include_usage),
            "has_continuous_usage": bool(options.continuous_usage_stats),
            "has_token_ids": bool(self.return_token_ids),
            "has_prompt_logprobs": self.prompt_logprobs is not None,
        }

    def engine_options(self) -> dict[str, Any]:
        """What goes to the engine beside prompt and sampling: fields of `EngineRequest`."""
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
