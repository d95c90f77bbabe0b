"""Text completions: output deltas in, chunks or one response out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qwen3_a8w8.errors import EngineDeadError
from qwen3_a8w8.openai.completion_response import (
    CompletionChoice,
    CompletionResponse,
    make_completion_logprobs,
)
from qwen3_a8w8.openai.response import ResponseIdentity, Usage, make_usage
from qwen3_a8w8.text.output import FinishReason, LogprobEntry, OutputDelta


class CompletionStream:
    """Writes the chunks of one request.

    Choice `p * n + k` is answer k to prompt p. Each ends with a chunk that carries its only
    finish reason.
    """

    def __init__(
        self,
        identity: ResponseIdentity,
        *,
        num_choices: int,
        prompt_tokens: int,
        echo_texts: Sequence[str] = (),
        has_usage: bool = False,
    ) -> None:
        """Makes the stream.

        Args:
            identity: id, time and model that every chunk repeats.
            num_choices: answers in all, prompts times `n`.
            prompt_tokens: length of all prompts together.
            echo_texts: for `echo`, what to put before each choice's text; one per choice.
            has_usage: end with a usage chunk.
        """
        self._identity = identity
        self._prompt_tokens = prompt_tokens
        self._has_usage = has_usage
        self._echo = list(echo_texts) or [""] * num_choices
        self._unsent = list(self._echo)
        self._logprobs: list[tuple[LogprobEntry, ...]] = [()] * num_choices
        self._num_tokens = [0] * num_choices
        self._finish: list[FinishReason | None] = [None] * num_choices

    @property
    def is_finished(self) -> bool:
        """Every choice has its finish reason."""
        return all(reason is not None for reason in self._finish)

    def feed(self, index: int, delta: OutputDelta) -> list[CompletionResponse]:
        """At most one chunk for new output of choice `index`; none while its text is held back."""
        if self._finish[index] is not None:
            return []
        self._num_tokens[index] += len(delta.token_ids)
        self._logprobs[index] += delta.logprobs
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
        )
        return [self._envelope([choice], None)]

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
        if not self._has_usage:
            return []
        usage = make_usage(self._prompt_tokens, sum(self._num_tokens), cached_tokens)
        return [self._envelope([], usage)]

    def _envelope(self, choices: list[CompletionChoice], usage: Usage | None) -> CompletionResponse:
        extra: dict[str, Any] = {"usage": usage} if self._has_usage else {}
        return CompletionResponse(
            id=self._identity.id,
            object="text_completion",
            created=self._identity.created,
            model=self._identity.model,
            system_fingerprint=self._identity.system_fingerprint,
            choices=choices,
            **extra,
        )


class CompletionCollector:
    """Gathers the output of one request that isn't streamed."""

    def __init__(
        self,
        identity: ResponseIdentity,
        *,
        num_choices: int,
        prompt_tokens: int,
        echo_texts: Sequence[str] = (),
    ) -> None:
        """Makes the collector; arguments as for `CompletionStream`."""
        self._stream = CompletionStream(
            identity,
            num_choices=num_choices,
            prompt_tokens=prompt_tokens,
            echo_texts=echo_texts,
            has_usage=True,
        )
        self._num_choices = num_choices
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
        return CompletionChoice(
            index=index,
            text="".join(delta.text for delta in deltas),
            logprobs=whole,
            finish_reason=deltas[-1].finish_reason,
        )
