"""The response to a text completion request: output deltas in, chunks or one response out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qwen3_a8w8.errors import EngineDeadError
from qwen3_a8w8.openai.completions.shapes import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionResponse,
    make_completion_logprobs,
    put_prompt_before,
)
from qwen3_a8w8.openai.progress import Progress
from qwen3_a8w8.openai.prompt_logprobs import make_prompt_logprobs
from qwen3_a8w8.openai.response import ResponseContext, ResponseWriter
from qwen3_a8w8.text.outputs import FinishReason, LogprobEntry, OutputDelta


class CompletionWriter(ResponseWriter[CompletionResponse, CompletionResponse]):
    """Writes the chunks of one request, and folds them where the response isn't streamed.

    Choice `p * n + k` is answer k to prompt p. Each ends with a chunk that carries its only
    finish reason.
    """

    def __init__(
        self,
        context: ResponseContext,
        echo_texts: Sequence[str] = (),
        echo_tokens: Sequence[str] = (),
    ) -> None:
        """Makes the writer.

        Args:
            context: of the request.
            echo_texts: for `echo`, what to put before each choice's text; one per choice.
            echo_tokens: for `echo` with log-probabilities, the first token of each choice's prompt.
        """
        self._context = context
        self._progress = Progress(context)
        num_choices = context.num_choices
        self._prompt_logprobs: dict[int, tuple[LogprobEntry, ...]] = {}
        self._echo = list(echo_texts) or [""] * num_choices
        self._echo_tokens = list(echo_tokens)
        self._unsent = list(self._echo)
        self._logprobs: list[tuple[LogprobEntry, ...]] = [()] * num_choices
        self._token_ids: list[tuple[int, ...]] = [()] * num_choices
        self._is_begun = [False] * num_choices
        self._num_tokens = [0] * num_choices
        self._finish: list[FinishReason | None] = [None] * num_choices

    def feed(self, index: int, delta: OutputDelta) -> list[CompletionResponse]:
        """At most one chunk for new output of choice `index`; none while its text is held back."""
        if self._finish[index] is not None:
            return []
        self._progress.add(index, delta)
        if delta.prompt_logprobs:
            self._prompt_logprobs[index // self._context.num_per_prompt] = delta.prompt_logprobs
        if not self._context.has_output:
            delta = OutputDelta(finish_reason=delta.finish_reason and "length")
        self._num_tokens[index] += len(delta.token_ids)
        self._logprobs[index] += delta.logprobs
        self._token_ids[index] += delta.token_ids
        text = self._unsent[index] + delta.text
        if not text and delta.finish_reason is None:
            return []
        self._finish[index] = delta.finish_reason
        entries, self._logprobs[index], self._unsent[index] = self._logprobs[index], (), ""
        extra = self._ids_fields(index)
        extra |= self._context.stop_reason_field(delta.finish_reason, delta.stop_reason)
        choice = CompletionChoice(
            index=index,
            text=text,
            logprobs=make_completion_logprobs(entries, len(self._echo[index])),
            finish_reason=delta.finish_reason,
            **extra,
        )
        self._is_begun[index] = True
        return [self._envelope([choice], self._progress.so_far(sum(self._num_tokens)))]

    def finish(self) -> list[CompletionResponse]:
        """The usage chunk, if it was asked for or the response is a whole one.

        Raises:
            EngineDeadError: a choice has no finish reason yet; the output ended too early.
        """
        for index, reason in enumerate(self._finish):
            if reason is None:
                raise EngineDeadError(
                    f"the output of choice {index} ended after {self._num_tokens[index]} tokens "
                    "without a finish reason; send the request again"
                )
        if not self._context.has_usage and self._context.is_streamed:
            return []
        return [self._envelope([], self._progress.totals(sum(self._num_tokens)))]

    def whole(self, events: Sequence[CompletionResponse]) -> CompletionResponse:
        """The response that the chunks add up to."""
        parts: list[list[CompletionChoice]] = [[] for _ in self._finish]
        for event in events:
            for choice in event.choices:
                parts[choice.index].append(choice)
        choices = [self._whole_choice(index, each) for index, each in enumerate(parts)]
        last = events[-1]
        extra: dict[str, Any] = {} if last.timings is None else {"timings": last.timings}
        return self._envelope(choices, {"usage": last.usage, **extra})

    def _whole_choice(self, index: int, parts: Sequence[CompletionChoice]) -> CompletionChoice:
        logprobs = [part.logprobs for part in parts if part.logprobs is not None]
        whole = logprobs[0].model_copy(deep=True) if logprobs else None
        if whole is not None:
            for part in logprobs[1:]:
                whole.tokens += part.tokens
                whole.token_logprobs += part.token_logprobs
                whole.top_logprobs += part.top_logprobs
                whole.text_offset += part.text_offset
        prompt_logprobs = self._prompt_logprobs.get(index // self._context.num_per_prompt, ())
        if whole is None and self._echo_tokens:
            whole = CompletionLogprobs(
                tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[]
            )
        if whole is not None and self._echo_tokens:
            put_prompt_before(whole, self._echo_tokens[index], prompt_logprobs)
        extra: dict[str, Any] = {}
        if self._context.has_prompt_logprobs:
            extra["prompt_logprobs"] = make_prompt_logprobs(prompt_logprobs)
        if self._context.has_token_ids:
            extra["token_ids"] = [token_id for part in parts for token_id in part.token_ids or ()]
            extra["prompt_token_ids"] = parts[0].prompt_token_ids
        return CompletionChoice(
            index=index,
            text="".join(part.text for part in parts),
            logprobs=whole,
            finish_reason=parts[-1].finish_reason,
            **parts[-1].model_dump(include={"stop_reason"}, exclude_unset=True),
            **extra,
        )

    def _ids_fields(self, index: int) -> dict[str, Any]:
        token_ids, self._token_ids[index] = self._token_ids[index], ()
        if not self._context.has_token_ids:
            return {}
        fields: dict[str, Any] = {"token_ids": list(token_ids)}
        if not self._is_begun[index]:
            fields["prompt_token_ids"] = self._context.prompt_of(index)
        return fields

    def _envelope(
        self, choices: list[CompletionChoice], extra: dict[str, Any]
    ) -> CompletionResponse:
        return CompletionResponse(
            **self._context.identity.fields(),
            object="text_completion",
            choices=choices,
            **extra,
        )
