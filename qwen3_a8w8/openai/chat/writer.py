"""The response to a chat completion request: output deltas in, chunks or one response out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qwen3_a8w8.errors import EngineDeadError
from qwen3_a8w8.openai.chat.choice import ChatChoice, ChatParsing, ChatPiece
from qwen3_a8w8.openai.chat.shapes import (
    ChatChunk,
    ChatDelta,
    ChatFinishReason,
    ChatMessage,
    ChatResponse,
    ChatResponseChoice,
    ChoiceLogprobs,
    ChunkChoice,
    make_choice_logprobs,
    make_delta_call,
    make_message_call,
)
from qwen3_a8w8.openai.progress import Progress
from qwen3_a8w8.openai.prompt_logprobs import make_prompt_logprobs
from qwen3_a8w8.openai.response import ResponseContext, ResponseWriter
from qwen3_a8w8.text.outputs import LogprobEntry, OutputDelta


class ChatWriter(ResponseWriter[ChatChunk, ChatResponse]):
    """Writes the chunks of one request, and folds them where the response isn't streamed.

    Each choice begins with a chunk that carries the role and ends with one that carries
    its only finish reason. Log-probabilities and ids of tokens whose text is still held back
    go out with the choice's next chunk.
    """

    def __init__(self, context: ResponseContext, parsing: ChatParsing | None = None) -> None:
        """Makes the writer.

        Args:
            context: of the request.
            parsing: how answers are split; default: reasoning, no tools.
        """
        self._context = context
        self._progress = Progress(context)
        num_choices = context.num_choices
        self._choices = [
            ChatChoice(parsing or ChatParsing(), is_streamed=context.is_streamed)
            for _ in range(num_choices)
        ]
        self._is_begun = [False] * num_choices
        self._logprobs: list[tuple[LogprobEntry, ...]] = [()] * num_choices
        self._token_ids: list[tuple[int, ...]] = [()] * num_choices
        self._prompt_logprobs: tuple[LogprobEntry, ...] = ()

    def feed(self, index: int, delta: OutputDelta) -> list[ChatChunk]:
        """Chunks for new output of choice `index`; none while its text is held back."""
        if self._choices[index].finish_reason is not None:
            return []
        self._progress.add(index, delta)
        self._prompt_logprobs = self._prompt_logprobs or delta.prompt_logprobs
        piece = self._choices[index].feed(delta)
        self._logprobs[index] += piece.logprobs
        self._token_ids[index] += piece.token_ids
        chunks = []
        if not self._is_begun[index]:
            self._is_begun[index] = True
            chunks.append(self._begin(index))
        for part in _deltas(piece):
            chunks.append(self._chunk(index, part))
        if piece.finish_reason is not None:
            chunks.append(self._last_chunk(index, piece))
        return chunks

    def finish(self) -> list[ChatChunk]:
        """The usage chunk, if it was asked for or the response is a whole one.

        Raises:
            EngineDeadError: a choice has no finish reason yet; the output ended too early.
        """
        check_all_finished(self._choices)
        if not self._context.has_usage and self._context.is_streamed:
            return []
        totals = self._progress.totals(self._num_tokens, self._num_reasoning_tokens)
        return [self._envelope([], totals)]

    def whole(self, events: Sequence[ChatChunk]) -> ChatResponse:
        """The response that the chunks add up to."""
        extra: dict[str, Any] = {}
        if self._context.has_token_ids:
            extra["prompt_token_ids"] = self._context.prompt_of(0)
        if self._context.has_prompt_logprobs:
            extra["prompt_logprobs"] = make_prompt_logprobs(self._prompt_logprobs)
        parts: list[list[ChunkChoice]] = [[] for _ in self._choices]
        for event in events:
            for choice in event.choices:
                parts[choice.index].append(choice)
        last = events[-1]
        assert last.usage is not None  # `finish` gives it where the response isn't streamed
        if last.timings is not None:
            extra["timings"] = last.timings
        return ChatResponse(
            **self._context.identity.fields(),
            object="chat.completion",
            choices=[self._whole_choice(index, each) for index, each in enumerate(parts)],
            usage=last.usage,
            **extra,
        )

    def _whole_choice(self, index: int, parts: Sequence[ChunkChoice]) -> ChatResponseChoice:
        content = "".join(part.delta.content or "" for part in parts)
        reasoning = "".join(part.delta.reasoning or "" for part in parts)
        calls = [make_message_call(call) for part in parts for call in part.delta.tool_calls or ()]
        entries = [entry for part in parts if part.logprobs for entry in part.logprobs.content]
        extra: dict[str, Any] = {}
        if reasoning:
            extra["reasoning_content"] = extra["reasoning"] = reasoning
        if calls:
            extra["tool_calls"] = calls
        finish_reason = parts[-1].finish_reason
        assert finish_reason is not None  # checked by `finish`
        message = ChatMessage(
            role="assistant",
            content=None if calls and not content else content,
            refusal=None,
            **extra,
        )
        of_choice: dict[str, Any] = parts[-1].model_dump(
            include={"stop_reason"}, exclude_unset=True
        )
        if self._context.has_token_ids:
            ids = [token_id for part in parts for token_id in part.token_ids or ()]
            of_choice["token_ids"] = ids
        return ChatResponseChoice(
            index=index,
            message=message,
            logprobs=ChoiceLogprobs(content=entries, refusal=None) if entries else None,
            finish_reason=finish_reason,
            **of_choice,
        )

    @property
    def _num_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self._choices)

    @property
    def _num_reasoning_tokens(self) -> int:
        return sum(choice.num_reasoning_tokens for choice in self._choices)

    def _so_far(self) -> dict[str, Any]:
        return self._progress.so_far(self._num_tokens, self._num_reasoning_tokens)

    def _begin(self, index: int) -> ChatChunk:
        choice = ChunkChoice(
            index=index,
            delta=ChatDelta(role="assistant", content=""),
            logprobs=None,
            finish_reason=None,
        )
        extra: dict[str, Any] = self._so_far()
        if self._context.has_token_ids:
            extra["prompt_token_ids"] = self._context.prompt_of(index)
        return self._envelope([choice], extra)

    def _last_chunk(self, index: int, piece: ChatPiece) -> ChatChunk:
        reason = piece.finish_reason
        extra = self._context.stop_reason_field(reason, piece.stop_reason)
        return self._chunk(index, ChatDelta(), reason, extra)

    def _chunk(
        self,
        index: int,
        delta: ChatDelta,
        finish_reason: ChatFinishReason | None = None,
        stop_reason: Mapping[str, str | int] | None = None,
    ) -> ChatChunk:
        """A chunk with all that has come without one."""
        extra: dict[str, Any] = dict(stop_reason or {})
        logprobs, self._logprobs[index] = self._logprobs[index], ()
        token_ids, self._token_ids[index] = self._token_ids[index], ()
        if self._context.has_token_ids:
            extra["token_ids"] = list(token_ids)
        choice = ChunkChoice(
            index=index,
            delta=delta,
            logprobs=make_choice_logprobs(logprobs),
            finish_reason=finish_reason,
            **extra,
        )
        return self._envelope([choice], self._so_far())

    def _envelope(self, choices: list[ChunkChoice], extra: dict[str, Any]) -> ChatChunk:
        return ChatChunk(
            **self._context.identity.fields(),
            object="chat.completion.chunk",
            choices=choices,
            **extra,
        )


def check_all_finished(choices: Sequence[ChatChoice]) -> None:
    """Checks that no choice is left open.

    Raises:
        EngineDeadError: one has no finish reason.
    """
    for index, choice in enumerate(choices):
        if choice.finish_reason is None:
            raise EngineDeadError(
                f"the output of choice {index} ended after {choice.num_tokens} tokens without a "
                "finish reason; send the request again"
            )


def _deltas(piece: ChatPiece) -> list[ChatDelta]:
    """One delta per part, in the order in which the model wrote them."""
    deltas = []
    if piece.reasoning:
        deltas.append(ChatDelta(reasoning_content=piece.reasoning, reasoning=piece.reasoning))
    for part in piece.parts:
        if isinstance(part, str):
            deltas.append(ChatDelta(content=part))
        elif part.is_first or part.arguments:
            deltas.append(ChatDelta(tool_calls=[make_delta_call(part)]))
    return deltas
