"""The response to a text completion request: output deltas in, chunks or one response out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qwen3_a8w8.errors import EngineDeadError
from qwen3_a8w8.openai.completions.shapes import (
    CompletionChoice,
    CompletionResponse,
    make_completion_logprobs,
    put_prompt_before,
)
from qwen3_a8w8.openai.prompt_logprobs import make_prompt_logprobs
from qwen3_a8w8.openai.response import ResponseContext, Usage, make_usage
from qwen3_a8w8.text.output_processor import FinishReason, LogprobEntry, OutputDelta


class CompletionStream:
    """Writes the chunks of one request.

    Choice `p * n + k` is answer k to prompt p. Each ends with a chunk that carries its only
    finish reason.
    """

    def __init__(
        self,
        request: ResponseContext,
        echo_texts: Sequence[str] = (),
    ) -> None:
        """Makes the stream.

        Args:
            request: what is answered.
            echo_texts: for `echo`, what to put before each choice's text; one per choice.
        """
        self._prompt_logprobs: dict[int, tuple[LogprobEntry, ...]] = {}
        self._request = request
        num_choices = request.num_choices
        self._echo = list(echo_texts) or [""] * num_choices
        self._unsent = list(self._echo)
        self._logprobs: list[tuple[LogprobEntry, ...]] = [()] * num_choices
        self._token_ids: list[tuple[int, ...]] = [()] * num_choices
        self._is_begun = [False] * num_choices
        self._num_tokens = [0] * num_choices
        self._finish: list[FinishReason | None] = [None] * num_choices

    @property
    def is_finished(self) -> bool:
        """Every choice has its finish reason."""
        return all(reason is not None for reason in self._finish)

    def begin(self) -> list[CompletionResponse]:
        """Nothing: a choice begins with its first output."""
        return []

    def feed(self, index: int, delta: OutputDelta) -> list[CompletionResponse]:
        """At most one chunk for new output of choice `index`; none while its text is held back."""
        if self._finish[index] is not None:
            return []
        self._num_tokens[index] += len(delta.token_ids)
        if delta.prompt_logprobs:
            self._prompt_logprobs[index // self._request.num_per_prompt] = delta.prompt_logprobs
        self._logprobs[index] += delta.logprobs
        self._token_ids[index] += delta.token_ids
        text = self._unsent[index] + delta.text
        if not text and delta.finish_reason is None:
            return []
        self._finish[index] = delta.finish_reason
        entries, self._logprobs[index], self._unsent[index] = self._logprobs[index], (), ""
        choice = CompletionChoice(
            index=index,
            text=text,
            logprobs=make_completion_logprobs(entries, len(self._echo[index])),
            finish_reason=delta.finish_reason,
            **self._ids_fields(index),
        )
        self._is_begun[index] = True
        return [self._envelope([choice], self._request.usage_field(sum(self._num_tokens)))]

    def fail(self, error: Exception, code: str | None) -> list[CompletionResponse]:
        """Nothing: the error frame does."""
        del error, code
        return []

    def finish(self, cached_tokens: int | None = None) -> list[CompletionResponse]:
        """The usage chunk, if it was asked for.

        Raises:
            EngineDeadError: a choice has no finish reason yet; the output ended too early.
        """
        for index, reason in enumerate(self._finish):
            if reason is None:
                raise EngineDeadError(
                    f"the output of choice {index} ended after {self._num_tokens[index]} tokens "
                    "without a finish reason; send the request again"
                )
        if not self._request.has_usage:
            return []
        usage = make_usage(self._request.num_prompt_tokens, sum(self._num_tokens), cached_tokens)
        return [self._envelope([], {"usage": usage})]

    def _ids_fields(self, index: int) -> dict[str, Any]:
        token_ids, self._token_ids[index] = self._token_ids[index], ()
        if not self._request.has_token_ids:
            return {}
        fields: dict[str, Any] = {"token_ids": list(token_ids)}
        if not self._is_begun[index]:
            fields["prompt_token_ids"] = self._request.prompt_of(index)
        return fields

    def prompt_logprobs(self, index: int) -> tuple[LogprobEntry, ...]:
        """Of the prompt that choice `index` answers, its first token left out."""
        return self._prompt_logprobs.get(index // self._request.num_per_prompt, ())

    def _envelope(
        self, choices: list[CompletionChoice], extra: Mapping[str, Usage | None]
    ) -> CompletionResponse:
        identity = self._request.identity
        return CompletionResponse(
            id=identity.id,
            object="text_completion",
            created=identity.created,
            model=identity.model,
            system_fingerprint=identity.system_fingerprint,
            choices=choices,
            **extra,
        )


class CompletionCollector:
    """Gathers the output of one request that isn't streamed."""

    def __init__(
        self,
        request: ResponseContext,
        echo_texts: Sequence[str] = (),
        echo_tokens: Sequence[str] = (),
    ) -> None:
        """Makes the collector.

        Args:
            request: what is answered.
            echo_texts: as for `CompletionStream`.
            echo_tokens: for `echo` with log-probabilities, the first token of each choice's prompt.
        """
        self._stream = CompletionStream(
            replace(request, has_usage=True, has_continuous_usage=False), echo_texts
        )
        self._echo_tokens = list(echo_tokens)
        self._request = request
        self._num_choices = request.num_choices
        self._deltas: list[CompletionChoice] = []

    @property
    def is_finished(self) -> bool:
        """Every choice has its finish reason."""
        return self._stream.is_finished

    def feed(self, index: int, delta: OutputDelta) -> None:
        """Takes new output of choice `index`."""
        for chunk in self._stream.feed(index, delta):
            self._deltas.extend(chunk.choices)

    def response(self, cached_tokens: int | None = None) -> CompletionResponse:
        """The whole response.

        Raises:
            EngineDeadError: a choice has no finish reason yet; the output ended too early.
        """
        (response,) = self._stream.finish(cached_tokens)
        response.choices = [self._whole(index) for index in range(self._num_choices)]
        return response

    def _whole(self, index: int) -> CompletionChoice:
        deltas = [delta for delta in self._deltas if delta.index == index]
        logprobs = [delta.logprobs for delta in deltas if delta.logprobs is not None]
        whole = logprobs[0].model_copy(deep=True) if logprobs else None
        if whole is not None:
            for part in logprobs[1:]:
                whole.tokens += part.tokens
                whole.token_logprobs += part.token_logprobs
                whole.top_logprobs += part.top_logprobs
                whole.text_offset += part.text_offset
        prompt_logprobs = self._stream.prompt_logprobs(index)
        if whole is not None and self._echo_tokens:
            put_prompt_before(whole, self._echo_tokens[index], prompt_logprobs)
        ids: dict[str, Any] = {}
        if self._request.has_prompt_logprobs:
            ids["prompt_logprobs"] = make_prompt_logprobs(prompt_logprobs)
        if self._request.has_token_ids:
            ids["token_ids"] = [i for delta in deltas for i in delta.token_ids or ()]
            ids["prompt_token_ids"] = deltas[0].prompt_token_ids
        return CompletionChoice(
            index=index,
            text="".join(delta.text for delta in deltas),
            logprobs=whole,
            finish_reason=deltas[-1].finish_reason,
            **ids,
        )


@dataclass(frozen=True, slots=True)
class CompletionAnswer:
    """Texts; implements `openai.answer.Answer`.

    Attributes:
        request: what is answered.
        echo_texts: for `echo`, what to put before each choice's text; one per choice.
        echo_tokens: for `echo` with log-probabilities, the first token of each choice's prompt.
    """

    request: ResponseContext
    echo_texts: tuple[str, ...] = ()
    echo_tokens: tuple[str, ...] = ()

    def stream(self) -> CompletionStream:
        """As chunks."""
        return CompletionStream(self.request, self.echo_texts)

    def collector(self) -> CompletionCollector:
        """As one response."""
        return CompletionCollector(self.request, self.echo_texts, self.echo_tokens)
