"""Body of `POST /v1/completions`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, cast

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    model_validator,
)

from qwen3_a8w8.config import MAX_LOGPROBS
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.openai.request import FieldError, shown
from qwen3_a8w8.openai.sampling_fields import SamplingFields
from qwen3_a8w8.text.generation_defaults import GenerationDefaults

DEFAULT_MAX_TOKENS = 16
"""Default `max_tokens` of a text completion; OpenAI's value."""

MAX_CHOICES = 256
"""Most choices of one request over all prompts; 16 prompts with n = 16."""

Prompt = str | list[int]


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _as_prompts(value: object) -> list[Prompt]:
    """Converts the four formats of the field to a list of prompts."""
    prompts = [value] if isinstance(value, str) or (value and _is_ids(value)) else value
    if not isinstance(prompts, list) or not prompts:
        raise ValueError(
            "expected a non-empty string, a list of strings, a list of token ids or a list of "
            "lists of token ids"
        )
    if len(prompts) > MAX_CHOICES:
        raise ValueError(
            f"{len(prompts)} prompts, expected at most {MAX_CHOICES}; send several requests"
        )
    is_text = isinstance(prompts[0], str)
    for position, prompt in enumerate(prompts):
        if not (isinstance(prompt, str) if is_text else _is_ids(prompt)):
            raise ValueError(
                f"prompt {position} is {shown(prompt)}; expected all prompts to be "
                "strings, or all lists of token ids"
            )
        if not prompt:
            raise ValueError(f"prompt {position} is empty; expected at least one token")
        if not is_text and min(prompt) < 0:
            raise ValueError(f"prompt {position} has the token id {min(prompt)}, expected >= 0")
    return cast("list[Prompt]", prompts)


class CompletionRequest(SamplingFields):
    """A text completion request; `prompt` is always a list once parsed."""

    prompt: Annotated[list[str | list[int]], BeforeValidator(_as_prompts)]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: int | None = None
    suffix: str | None = None

    @model_validator(mode="after")
    def _check_completion(self) -> CompletionRequest:
        if len(self.prompt) * self.num_choices > MAX_CHOICES:
            raise FieldError(
                f"{len(self.prompt)} prompts with n {self.num_choices} make "
                f"{len(self.prompt) * self.num_choices} choices, at most {MAX_CHOICES} are "
                "allowed; send several requests",
                "n" if len(self.prompt) == 1 else "prompt",
            )
        if self.echoes_logprobs and self.stream:
            raise FieldError(
                "echo with logprobs is set, but streams don't return log-probabilities of the "
                "prompt; remove stream, echo or logprobs",
                "echo",
            )
        if self.best_of is not None and self.best_of != self.num_choices:
            raise FieldError(
                f"best_of is {self.best_of}, but n is {self.num_choices}; only equal values are "
                "supported",
                "best_of",
            )
        if self.suffix:
            raise FieldError("suffix is set; insertion isn't supported, remove suffix", "suffix")
        return self

    def context_options(self) -> dict[str, Any]:
        """What the response contains besides its text: fields of `ResponseContext`."""
        return super().context_options() | {"has_output": self.max_tokens != 0}

    @property
    def echoes_logprobs(self) -> bool:
        """Whether the response contains the prompt with its log-probabilities."""
        return bool(self.echo) and self.logprobs is not None

    def sampling_params(self, defaults: GenerationDefaults) -> SamplingParams:
        """Sampling parameters; a field of the request overrides the checkpoint's default.

        Raises:
            InvalidRequestError: a value is outside its range.
        """
        max_tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else max(1, self.max_tokens)
        sampling = self._sampling_params(
            defaults,
            max_tokens=max_tokens,
            logprobs=self.logprobs,
            structured=self.structured_output(),
        )
        if self.echoes_logprobs and sampling.prompt_logprobs is None:
            sampling = replace(sampling, prompt_logprobs=self.logprobs)
        return sampling


class BatchRequest(CompletionRequest):
    """Body of `POST /v1/batch_generate`: prompts that run as one explicit batch.

    The list may also be named `prompts`, as in the Python handle's `generate_batch`.
    """

    prompt: Annotated[list[str | list[int]], BeforeValidator(_as_prompts)] = Field(
        validation_alias=AliasChoices("prompt", "prompts")
    )
    _prompts_field: str = PrivateAttr(default="prompt")

    @model_validator(mode="wrap")
    @classmethod
    def _read_prompts(
        cls, raw: Any, handler: ModelWrapValidatorHandler[BatchRequest]
    ) -> BatchRequest:
        has_other_name = isinstance(raw, dict) and "prompts" in raw
        if has_other_name and "prompt" in raw:
            raise FieldError("prompt and prompts are both set; send one of them", "prompts")
        request = handler(raw)
        if has_other_name:
            request._prompts_field = "prompts"
        return request

    @property
    def prompts_field(self) -> str:
        """The field name of the list in the request."""
        return self._prompts_field
