"""A streamed chat completion: output deltas in, chunks out."""

from __future__ import annotations

from typing import Any

from qwen3_a8w8.errors import EngineDeadError
from qwen3_a8w8.openai.answer import AnsweredRequest
from qwen3_a8w8.openai.chat_choice import ChatChoice, ChatParsing, ChatPiece
from qwen3_a8w8.openai.chat_response import (
    ChatChunk,
    ChatDelta,
    ChatFinishReason,
    ChunkChoice,
    make_choice_logprobs,
    make_delta_call,
)
from qwen3_a8w8.openai.response import make_usage
from qwen3_a8w8.text.output import LogprobEntry, OutputDelta


class ChatStream:
    """Writes the chunks of one request.

    Each choice begins with a chunk that carries the role and ends with one that carries
    its only finish reason. Log-probabilities and ids of tokens whose text is still held back
    go out with the choice's next chunk.
    """

    def __init__(
        self,
        request: AnsweredRequest,
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
