"""A chat completion that isn't streamed: output deltas in, one response out."""

from __future__ import annotations

from typing import Any

from qwen3_a8w8.openai.answer import AnsweredRequest
from qwen3_a8w8.openai.chat_choice import ChatChoice, ChatParsing, ChatPiece
from qwen3_a8w8.openai.chat_response import (
    ChatFinishReason,
    ChatMessage,
    ChatResponse,
    ChatResponseChoice,
    make_choice_logprobs,
    make_message_call,
)
from qwen3_a8w8.openai.chat_stream import check_all_finished
from qwen3_a8w8.openai.prompt_logprobs import make_prompt_logprobs
from qwen3_a8w8.openai.response import make_usage
from qwen3_a8w8.text.output import LogprobEntry, OutputDelta
from qwen3_a8w8.text.tool_calls import collect_calls


class ChatCollector:
    """Gathers the output of one request."""

    def __init__(
        self,
        request: AnsweredRequest,
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
