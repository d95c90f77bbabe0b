"""Request fields common to chat and text completions, and their conversion to `SamplingParams`.

Every field may be null or missing; the default then comes from the checkpoint's
generation_config.json if that has one. `SamplingParams` validates ranges.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.openai.request import FieldError, NestedModel, PlaceError, shown
from qwen3_a8w8.openai.structured_fields import StructuredFields
from qwen3_a8w8.text.generation_defaults import GenerationDefaults
from qwen3_a8w8.text.structured import StructuredOutput


def _as_list(value: object) -> object:
    if value is not None and not isinstance(value, str | list):
        raise PlaceError("", f"is {shown(value)}; expected a string or a list of strings")
    return [value] if isinstance(value, str) else value


StopField = Annotated[list[str] | None, BeforeValidator(_as_list)]
"""Stop strings: one, or a list."""


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


class StreamOptions(NestedModel):
    """What a stream contains besides the text."""

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
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    stop: StopField = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
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
    timings_per_token: bool | None = None

    @model_validator(mode="after")
    def _check_common(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise FieldError(
                "stream_options is set, but stream is not true; set stream or remove "
                "stream_options",
                "stream_options",
            )
        if self.truncate_prompt_tokens == 0:
            raise FieldError(
                "truncate_prompt_tokens is 0, which leaves nothing of the prompt; expected -1 "
                "(what fits) or at least 1",
                "truncate_prompt_tokens",
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
            "has_timings": bool(self.timings_per_token),
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
        for name in ("stop", "stop_token_ids", "bad_words"):
            fields[name] = tuple(getattr(self, name) or ())
        if self.no_stop_trim:
            fields["include_stop_str_in_output"] = True
        return SamplingParams(**fields)

    @property
    def max_output_tokens(self) -> int | None:
        """Most output tokens that the request asks for."""
        return self.max_tokens

    def encoding_limit(self, limit: int) -> int:
        """Most tokens that a prompt may have before it is truncated; `limit` without truncation."""
        return limit if self.truncate_prompt_tokens is None else _ANY_LENGTH

    def truncated(self, prompt: tuple[int, ...], limit: int) -> tuple[int, ...]:
        """A prompt's ids, without those that `truncate_prompt_tokens` leaves out.

        Args:
            prompt: all of them.
            limit: longest prompt that leaves room for one token of output.
        """
        count = self.truncate_prompt_tokens
        if count is None:
            return prompt
        if count == -1:
            count = max(1, limit + 1 - (self.max_output_tokens or 1))
        return prompt[:count] if self.truncation_side == "right" else prompt[-count:]


_ANY_LENGTH = 2**62

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
    "allowed_token_ids",
    "include_stop_str_in_output",
)
