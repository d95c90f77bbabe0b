"""Token counts and times of one request, as its response reports them: so far, and in all."""

from __future__ import annotations

import time
from typing import Any

from qwen3_a8w8.openai.response import ResponseContext, ResponseModel
from qwen3_a8w8.text.outputs import OutputDelta


class PromptTokensDetails(ResponseModel):
    """Tokens of the prompt that came from the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(ResponseModel):
    """Tokens of the output that stand in think blocks."""

    reasoning_tokens: int


class Usage(ResponseModel):
    """Token counts of one request, over all its prompts and choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class Timings(ResponseModel):
    """Times in ms as llama.cpp's server reports them.

    The prompt's time goes from the request to the first output, with the time in the queue; the
    tokens' time from there on. `prompt_n` doesn't count what came from the prefix cache, `cache_n`.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class Progress:
    """Counts the output of one request and describes it."""

    def __init__(self, context: ResponseContext) -> None:
        self._context = context
        self._cached_by_prompt: dict[int, int] = {}
        self._first_s: float | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens from the prefix cache; a prompt that has several answers counts once."""
        return sum(self._cached_by_prompt.values())

    def add(self, index: int, delta: OutputDelta) -> None:
        """Takes new output of choice `index`."""
        if self._first_s is None:
            self._first_s = time.perf_counter()
        if delta.num_cached_tokens:
            prompt = index // self._context.num_per_prompt
            self._cached_by_prompt.setdefault(prompt, delta.num_cached_tokens)

    def totals(self, num_output_tokens: int, reasoning_tokens: int = 0) -> dict[str, Any]:
        """The fields of an event or a response that has the usage.

        Args:
            num_output_tokens: of all choices.
            reasoning_tokens: those of them in think blocks; left out where there are none.
        """
        num_prompt_tokens = self._context.num_prompt_tokens
        usage = Usage(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=num_output_tokens,
            total_tokens=num_prompt_tokens + num_output_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self.cached_tokens),
        )
        if reasoning_tokens:
            usage.completion_tokens_details = CompletionTokensDetails(
                reasoning_tokens=reasoning_tokens
            )
        return {"usage": usage, **self._timings(num_output_tokens)}

    def so_far(self, num_output_tokens: int, reasoning_tokens: int = 0) -> dict[str, Any]:
        """The fields of an event with choices; see `totals`.

        Without `continuous_usage_stats` there is no usage; with `include_usage` it is null then.
        """
        if self._context.has_continuous_usage:
            return self.totals(num_output_tokens, reasoning_tokens)
        fields = self._timings(num_output_tokens)
        return {"usage": None, **fields} if self._context.has_usage else fields

    def _timings(self, num_output_tokens: int) -> dict[str, Timings]:
        if not self._context.has_timings:
            return {}
        now_s = time.perf_counter()
        first_s = now_s if self._first_s is None else self._first_s
        prompt_ms = 1e3 * (first_s - self._context.started_s)
        predicted_ms = 1e3 * (now_s - first_s)
        cached = self.cached_tokens
        num_prompt = self._context.num_prompt_tokens - cached
        timings = Timings(
            cache_n=cached,
            prompt_n=num_prompt,
            prompt_ms=prompt_ms,
            prompt_per_token_ms=_share(prompt_ms, num_prompt),
            prompt_per_second=_share(1e3 * num_prompt, prompt_ms),
            predicted_n=num_output_tokens,
            predicted_ms=predicted_ms,
            predicted_per_token_ms=_share(predicted_ms, num_output_tokens),
            predicted_per_second=_share(1e3 * num_output_tokens, predicted_ms),
        )
        return {"timings": timings}


def _share(value: float, count: float) -> float:
    return value / count if count else 0.0
