"""Schemas of Ollama's answers: chunks and whole ones have the same fields."""

from __future__ import annotations

from typing import Any, Literal

from qwen3_a8w8.openai.chat.shapes import ContentLogprob
from qwen3_a8w8.openai.response import ResponseModel


class CalledFunction(ResponseModel):
    """Name and arguments of a call."""

    index: int
    name: str
    arguments: dict[str, Any]


class ToolCall(ResponseModel):
    """A call."""

    id: str
    function: CalledFunction


class AnswerMessage(ResponseModel):
    """What a chunk of a chat adds."""

    role: Literal["assistant"]
    content: str
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None


class OllamaAnswer(ResponseModel):
    """A chunk, or a whole answer: `message` of a chat, `response` and `thinking` of a generation.

    Counts and durations (in ns) come with the last chunk. `prompt_eval_duration` goes from the
    request to the first output, `eval_duration` from there to the end.
    """

    model: str
    created_at: str
    message: AnswerMessage | None = None
    response: str | None = None
    thinking: str | None = None
    logprobs: list[ContentLogprob] | None = None
    done: bool
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
