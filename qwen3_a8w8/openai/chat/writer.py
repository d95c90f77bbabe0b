"""The response to a chat completion request: output deltas in, chunks or one response out."""

from __future__ import annotations

from dataclasses import dataclass
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
    ChunkChoice,
    make_choice_logprobs,
    make_delta_call,
    make_message_call,
)
from qwen3_a8w8.openai.prompt_logprobs import make_prompt_logprobs
from qwen3_a8w8.openai.response import ResponseContext, make_usage
from qwen3_a8w8.text.output_processor import LogprobEntry, OutputDelta
from qwen3_a8w8.text.tool_calls import collect_calls


class ChatStream:
    """Writes the chunks of one request.

    Each choice begins with a chunk that carries the role and ends with one that carries
    its only finish reason. Log-probabilities and ids of tokens whose text is still held back
    go out with the choice's next chunk.
    """

    def __init__(
        self,
        request: ResponseContext,
        parsing: ChatParsing | None = None,
    ) -> None:
        """Makes the stream.

        Args:
            request: what is answered.
            parsing: how answers are split; default: reasoning, no tools.
        """
        self._request = request
        num_choices = request.num_choices
        self._choices = [ChatChoice(parsing or ChatParsing()) for _ in range(num_choices)]
        self._is_begun = [False] * num_choices
        self._logprobs: list[tuple[LogprobEntry, ...]] = [()] * num_choices
        self._token_ids: list[tuple[int, ...]] = [()] * num_choices

    @property
    def is_finished(self) -> bool:
        """Every choice has its finish reason."""
        return all(choice.finish_reason is not None for choice in self._choices)

    def begin(self) -> list[ChatChunk]:
        """Nothing: a choice begins with its first output."""
        return []

    def feed(self, index: int, delta: OutputDelta) -> list[ChatChunk]:
        """Chunks for new output of choice `index`; none while its text is held back."""
        if self._choices[index].finish_reason is not None:
            return []
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
            chunks.append(self._chunk(index, ChatDelta(), piece.finish_reason))
        return chunks

    def fail(self, error: Exception, code: str | None) -> list[ChatChunk]:
        """Nothing: the error frame does."""
        del error, code
        return []

    def finish(self, cached_tokens: int | None = None) -> list[ChatChunk]:
        """The usage chunk, if it was asked for.

        Raises:
            EngineDeadError: a choice has no finish reason yet; the output ended too early.
        """
        check_all_finished(self._choices)
        if not self._request.has_usage:
            return []
        num_reasoning = sum(choice.num_reasoning_tokens for choice in self._choices)
        usage = make_usage(
            self._request.num_prompt_tokens, self._num_tokens, cached_tokens, num_reasoning
        )
        return [self._envelope([], {"usage": usage})]

    @property
    def _num_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self._choices)

    def _begin(self, index: int) -> ChatChunk:
        choice = ChunkChoice(
            index=index,
            delta=ChatDelta(role="assistant", content=""),
            logprobs=None,
            finish_reason=None,
        )
        extra: dict[str, Any] = dict(self._request.usage_field(self._num_tokens))
        if self._request.has_token_ids:
            extra["prompt_token_ids"] = self._request.prompt_of(index)
        return self._envelope([choice], extra)

    def _chunk(
        self, index: int, delta: ChatDelta, finish_reason: ChatFinishReason | None = None
    ) -> ChatChunk:
        """A chunk with all that has come without one."""
        logprobs, self._logprobs[index] = self._logprobs[index], ()
        token_ids, self._token_ids[index] = self._token_ids[index], ()
        choice = ChunkChoice(
            index=index,
            delta=delta,
            logprobs=make_choice_logprobs(logprobs),
            finish_reason=finish_reason,
            **({"token_ids": list(token_ids)} if self._request.has_token_ids else {}),
        )
        return self._envelope([choice], self._request.usage_field(self._num_tokens))

    def _envelope(self, choices: list[ChunkChoice], extra: dict[str, Any]) -> ChatChunk:
        identity = self._request.identity
        return ChatChunk(
            id=identity.id,
            object="chat.completion.chunk",
            created=identity.created,
            model=identity.model,
            system_fingerprint=identity.system_fingerprint,
            choices=choices,
            **extra,
        )


def check_all_finished(choices: list[ChatChoice]) -> None:
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


class ChatCollector:
    """Gathers the output of one request."""

    def __init__(
        self,
        request: ResponseContext,
        parsing: ChatParsing | None = None,
    ) -> None:
        """Makes the collector; arguments as for `ChatStream`."""
        self._request = request
        self._prompt_logprobs: tuple[LogprobEntry, ...] = ()
        num_choices = request.num_choices
        self._choices = [ChatChoice(parsing or ChatParsing()) for _ in range(num_choices)]
        self._pieces: list[list[ChatPiece]] = [[] for _ in range(num_choices)]

    @property
    def is_finished(self) -> bool:
        """Every choice has its finish reason."""
        return all(choice.finish_reason is not None for choice in self._choices)

    def feed(self, index: int, delta: OutputDelta) -> None:
        """Takes new output of choice `index`."""
        self._prompt_logprobs = self._prompt_logprobs or delta.prompt_logprobs
        self._pieces[index].append(self._choices[index].feed(delta))

    def response(self, cached_tokens: int | None = None) -> ChatResponse:
        """The whole response.

        Raises:
            EngineDeadError: a choice has no finish reason yet; the output ended too early.
        """
        check_all_finished(self._choices)
        completion_tokens = sum(choice.num_tokens for choice in self._choices)
        num_reasoning = sum(choice.num_reasoning_tokens for choice in self._choices)
        identity, has_token_ids = self._request.identity, self._request.has_token_ids
        extra: dict[str, Any] = {}
        if has_token_ids:
            extra["prompt_token_ids"] = self._request.prompt_of(0)
        if self._request.has_prompt_logprobs:
            extra["prompt_logprobs"] = make_prompt_logprobs(self._prompt_logprobs)
        return ChatResponse(
            id=identity.id,
            object="chat.completion",
            created=identity.created,
            model=identity.model,
            system_fingerprint=identity.system_fingerprint,
            choices=[
                _response_choice(index, pieces, choice.finish_reason, has_token_ids)
                for index, (pieces, choice) in enumerate(
                    zip(self._pieces, self._choices, strict=True)
                )
                if choice.finish_reason is not None
            ],
            usage=make_usage(
                self._request.num_prompt_tokens, completion_tokens, cached_tokens, num_reasoning
            ),
            **extra,
        )


def _response_choice(
    index: int, pieces: list[ChatPiece], finish_reason: ChatFinishReason, has_token_ids: bool
) -> ChatResponseChoice:
    parts = [part for piece in pieces for part in piece.parts]
    content = "".join(part for part in parts if isinstance(part, str))
    reasoning = "".join(piece.reasoning for piece in pieces)
    calls = [make_message_call(call) for call in collect_calls(parts)]
    extra: dict[str, Any] = {}
    if reasoning:
        extra["reasoning_content"] = extra["reasoning"] = reasoning
    if calls:
        extra["tool_calls"] = calls
    message = ChatMessage(
        role="assistant",
        content=None if calls and not content else content,
        refusal=None,
        **extra,
    )
    ids = [token_id for piece in pieces for token_id in piece.token_ids]
    return ChatResponseChoice(
        index=index,
        message=message,
        logprobs=make_choice_logprobs([entry for piece in pieces for entry in piece.logprobs]),
        finish_reason=finish_reason,
        **({"token_ids": ids} if has_token_ids else {}),
    )


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """Messages; implements `openai.answer.Answer`."""

    request: ResponseContext
    parsing: ChatParsing

    def stream(self) -> ChatStream:
        """As chunks."""
        return ChatStream(self.request, self.parsing)

    def collector(self) -> ChatCollector:
        """As one response."""
        return ChatCollector(self.request, self.parsing)
