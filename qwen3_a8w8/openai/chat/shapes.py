"""Schemas of chat completion chunks and responses.

`reasoning_content` is the usual field for the think block of Qwen3 and others; `reasoning`
is its newer name with the same content. `stop_reason`, `token_ids` and `prompt_token_ids` are
vLLM's; everything else is OpenAI's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from qwen3_a8w8.openai.progress import Timings, Usage
from qwen3_a8w8.openai.prompt_logprobs import PromptLogprobs
from qwen3_a8w8.openai.response import ResponseModel
from qwen3_a8w8.text.outputs import LogprobEntry, TokenLogprob
from qwen3_a8w8.text.tool_calls import CallPart

ChatFinishReason = Literal["stop", "length", "tool_calls"]


class TopLogprob(ResponseModel):
    """An alternative at one position; `bytes` are the token's UTF-8 bytes."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TopLogprob):
    """The sampled token at one position."""

    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(ResponseModel):
    """Log-probabilities of new tokens."""

    content: list[ContentLogprob]
    refusal: None


class FunctionCall(ResponseModel):
    """Name and arguments (JSON text) of a call."""

    name: str
    arguments: str


class MessageToolCall(ResponseModel):
    """A call in a complete message."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class FunctionCallDelta(ResponseModel):
    """New text of a call's arguments; the first delta has the name."""

    name: str | None = None
    arguments: str


class DeltaToolCall(ResponseModel):
    """A call in a chunk; deltas of one call share the index, the first has its id."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCallDelta


class ChatDelta(ResponseModel):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[DeltaToolCall] | None = None


class ChunkChoice(ResponseModel):
    """One choice's part of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChoiceLogprobs | None
    finish_reason: ChatFinishReason | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatChunk(ResponseModel):
    """One event of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[ChunkChoice]
    usage: Usage | None = None
    timings: Timings | None = None
    prompt_token_ids: list[int] | None = None


class ChatMessage(ResponseModel):
    """A complete message."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[MessageToolCall] | None = None


class ChatResponseChoice(ResponseModel):
    """One choice of a response."""

    index: int
    message: ChatMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatResponse(ResponseModel):
    """Body of a chat completion that isn't streamed."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[ChatResponseChoice]
    usage: Usage
    timings: Timings | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


def make_choice_logprobs(entries: Sequence[LogprobEntry]) -> ChoiceLogprobs | None:
    """Log-probabilities in the format of chat completions; None if there are none."""
    if not entries:
        return None
    content = [
        ContentLogprob(
            token=entry.sampled.token,
            logprob=entry.sampled.logprob,
            bytes=list(entry.sampled.token_bytes),
            top_logprobs=[_top_logprob(token) for token in entry.top],
        )
        for entry in entries
    ]
    return ChoiceLogprobs(content=content, refusal=None)


def make_message_call(call: DeltaToolCall) -> MessageToolCall:
    """Converts the delta that has a whole call for a complete message."""
    assert call.id is not None
    assert call.function.name is not None
    function = FunctionCall(name=call.function.name, arguments=call.function.arguments)
    return MessageToolCall(id=call.id, type="function", function=function)


def make_delta_call(part: CallPart) -> DeltaToolCall:
    """Converts an update of a call for a chunk."""
    if not part.is_first:
        return DeltaToolCall(index=part.index, function=FunctionCallDelta(arguments=part.arguments))
    return DeltaToolCall(
        index=part.index,
        id=part.call_id,
        type="function",
        function=FunctionCallDelta(name=part.name, arguments=part.arguments),
    )


def _top_logprob(token: TokenLogprob) -> TopLogprob:
    return TopLogprob(token=token.token, logprob=token.logprob, bytes=list(token.token_bytes))
