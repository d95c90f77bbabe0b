"""The response to `POST /api/chat` and `/api/generate`: output deltas in, chunks or a whole out."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from pydantic_core import from_json

from qwen3_a8w8.ollama.shapes import AnswerMessage, CalledFunction, OllamaAnswer, ToolCall
from qwen3_a8w8.openai.chat.choice import ChatChoice, ChatParsing, ChatPiece
from qwen3_a8w8.openai.chat.shapes import ContentLogprob, make_choice_logprobs
from qwen3_a8w8.openai.chat.writer import check_all_finished
from qwen3_a8w8.openai.response import ResponseContext, ResponseWriter
from qwen3_a8w8.text.outputs import OutputDelta
from qwen3_a8w8.text.tool_calls import CallPart


class _OllamaWriter(ResponseWriter[OllamaAnswer, OllamaAnswer]):
    """What both kinds of answers share. A call comes as a whole, once it has ended."""

    def __init__(self, context: ResponseContext, parsing: ChatParsing) -> None:
        """Makes the writer.

        Args:
            context: of the request.
            parsing: how the output is split.
        """
        self._context = context
        self._choice = ChatChoice(parsing, is_streamed=False)
        self._first_s: float | None = None
        self._thinking = ""
        self._text = ""
        self._calls: list[ToolCall] = []
        self._logprobs: list[ContentLogprob] = []
        self._num_sent_logprobs = 0

    def feed(self, index: int, delta: OutputDelta) -> list[OllamaAnswer]:
        """At most one chunk for new output; there is one choice."""
        del index
        if self._first_s is None:
            self._first_s = time.perf_counter()
        piece = self._choice.feed(delta)
        text = "".join(part for part in piece.parts if isinstance(part, str))
        calls = [
            _tool_call(part) for part in piece.parts if isinstance(part, CallPart) and part.is_first
        ]
        self._thinking += piece.reasoning
        self._text += text
        self._calls += calls
        self._logprobs += self._logprobs_of(piece)
        if not (text or calls or piece.reasoning):
            return []
        return [self._answer(text, piece.reasoning, calls, self._unsent_logprobs())]

    def finish(self) -> list[OllamaAnswer]:
        """The last chunk, with counts and durations.

        Raises:
            EngineDeadError: the output ended too early.
        """
        check_all_finished([self._choice])
        return [self._answer("", "", [], self._unsent_logprobs(), **self._end())]

    def whole(self, events: Sequence[OllamaAnswer]) -> OllamaAnswer:
        """The answer that isn't streamed."""
        del events
        return self._answer(self._text, self._thinking, self._calls, self._logprobs, **self._end())

    @abstractmethod
    def _content(self, text: str, thinking: str, calls: list[ToolCall]) -> dict[str, Any]:
        """The fields of new output."""

    def _answer(
        self,
        text: str,
        thinking: str,
        calls: list[ToolCall],
        logprobs: list[ContentLogprob],
        **end: Any,
    ) -> OllamaAnswer:
        fields = self._content(text, thinking, calls)
        if logprobs:
            fields["logprobs"] = logprobs
        return OllamaAnswer(
            model=self._context.identity.model,
            created_at=_now(),
            **fields,
            **({"done": False} | end),
        )

    def _unsent_logprobs(self) -> list[ContentLogprob]:
        """Those of this chunk, and of tokens before it that gave no text to show."""
        unsent = self._logprobs[self._num_sent_logprobs :]
        self._num_sent_logprobs = len(self._logprobs)
        return unsent

    def _logprobs_of(self, piece: ChatPiece) -> list[ContentLogprob]:
        logprobs = make_choice_logprobs(piece.logprobs)
        return [] if logprobs is None else logprobs.content

    def _end(self) -> dict[str, Any]:
        now_s, start_s = time.perf_counter(), self._context.started_s
        first_s = now_s if self._first_s is None else self._first_s
        return {
            "done": True,
            "done_reason": "length" if self._choice.finish_reason == "length" else "stop",
            "total_duration": round(1e9 * (now_s - start_s)),
            "load_duration": 0,
            "prompt_eval_count": self._context.num_prompt_tokens,
            "prompt_eval_duration": round(1e9 * (first_s - start_s)),
            "eval_count": self._choice.num_tokens,
            "eval_duration": round(1e9 * (now_s - first_s)),
        }


class OllamaChatWriter(_OllamaWriter):
    """Writes the answer to a chat."""

    def _content(self, text: str, thinking: str, calls: list[ToolCall]) -> dict[str, Any]:
        extra: dict[str, Any] = {"thinking": thinking} if thinking else {}
        if calls:
            extra["tool_calls"] = calls
        return {"message": AnswerMessage(role="assistant", content=text, **extra)}


class OllamaGenerateWriter(_OllamaWriter):
    """Writes the answer to a prompt."""

    def _content(self, text: str, thinking: str, calls: list[ToolCall]) -> dict[str, Any]:
        del calls
        return {"response": text} | ({"thinking": thinking} if thinking else {})


def loaded_answer(model: str, *, is_chat: bool) -> OllamaAnswer:
    """The answer to a request without a prompt: the model is loaded."""
    content: dict[str, Any] = {"response": ""}
    if is_chat:
        content = {"message": AnswerMessage(role="assistant", content="")}
    return OllamaAnswer(model=model, created_at=_now(), **content, done=True, done_reason="load")


def _tool_call(part: CallPart) -> ToolCall:
    # Arguments that are cut have what is complete of them; the done reason says so.
    arguments = from_json(part.arguments or "{}", allow_partial=True)
    function = CalledFunction(
        index=part.index,
        name=part.name,
        arguments=arguments if isinstance(arguments, dict) else {},
    )
    return ToolCall(id=part.call_id, function=function)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
