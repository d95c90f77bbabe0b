"""The answer to a `POST /v1/responses`: the response object, and the events on its way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from qwen3_a8w8.openai.chat.choice import ChatChoice, ChatParsing
from qwen3_a8w8.openai.chat.writer import check_all_finished
from qwen3_a8w8.openai.errors import error_body
from qwen3_a8w8.openai.response import ResponseContext
from qwen3_a8w8.openai.responses.output import ResponsesOutput
from qwen3_a8w8.openai.responses.request import ResponsesRequest
from qwen3_a8w8.openai.responses.shapes import (
    InputDetails,
    OutputDetails,
    ResponseEvent,
    ResponseObject,
    ResponsesUsage,
)
from qwen3_a8w8.text.output_processor import OutputDelta

OnDone = Callable[[ResponseObject], None]
"""Called with a whole response before it is sent."""


@dataclass(frozen=True, slots=True)
class ResponsesAnswer:
    """A response; implements `openai.answer.Answer`.

    Attributes:
        body: the request as it was sent.
        on_done: keeps the response; None: it isn't kept.
        request: what the answer tells of it.
        parsing: how the output is split.
    """

    body: ResponsesRequest
    on_done: OnDone | None
    request: ResponseContext
    parsing: ChatParsing

    def stream(self) -> ResponsesStream:
        """As events."""
        return ResponsesStream(self)

    def collector(self) -> ResponsesCollector:
        """As one object."""
        return ResponsesCollector(self)


class ResponsesStream:
    """Writes the events of one response."""

    def __init__(self, answer: ResponsesAnswer, *, is_told: bool = True) -> None:
        """Makes the stream.

        Args:
            answer: what is answered.
            is_told: the client sees the events.
        """
        self._answer = answer
        self._choice = ChatChoice(answer.parsing)
        self._output = ResponsesOutput(keeps_malformed=is_told)

    def begin(self) -> list[ResponseEvent]:
        """Says that the response has been begun."""
        return [
            self._output.event(f"response.{kind}", response=self._object("in_progress"))
            for kind in ("created", "in_progress")
        ]

    def feed(self, index: int, delta: OutputDelta) -> list[ResponseEvent]:
        """Events for new output; there is one choice."""
        del index
        return list(self._output.feed(self._choice.feed(delta)))

    def finish(self, cached_tokens: int | None = None) -> list[ResponseEvent]:
        """The event with the whole response.

        Raises:
            EngineDeadError: the output ended too early.
        """
        response = self.response(cached_tokens)
        return [self._output.event(f"response.{response.status}", response=response)]

    def fail(self, error: Exception, code: str | None) -> list[ResponseEvent]:
        """The event that says why there is no more."""
        told = error_body(error, code=code)["error"]
        response = self._object("failed")
        response.error = {"code": "server_error", "message": told["message"]}
        return [self._output.event("response.failed", response=response)]

    def response(self, cached_tokens: int | None) -> ResponseObject:
        """The whole response.

        Raises:
            EngineDeadError: the output ended too early.
        """
        check_all_finished([self._choice])
        is_cut = self._choice.finish_reason == "length"
        response = self._object("incomplete" if is_cut else "completed")
        if is_cut:
            response.incomplete_details = {"reason": "max_output_tokens"}
        response.completed_at = None if is_cut else int(time.time())
        response.usage = self._usage(cached_tokens or 0)
        if self._answer.on_done is not None:
            self._answer.on_done(response)
        return response

    def _usage(self, cached_tokens: int) -> ResponsesUsage:
        num_input = self._answer.request.num_prompt_tokens
        choice = self._choice
        return ResponsesUsage(
            input_tokens=num_input,
            input_tokens_details=InputDetails(
                cached_tokens=cached_tokens, cache_write_tokens=num_input - cached_tokens
            ),
            output_tokens=choice.num_tokens,
            output_tokens_details=OutputDetails(reasoning_tokens=choice.num_reasoning_tokens),
            total_tokens=num_input + choice.num_tokens,
        )

    def _object(self, status: str) -> ResponseObject:
        body, identity = self._answer.body, self._answer.request.identity
        reasoning = body.reasoning
        return ResponseObject(
            id=identity.id,
            object="response",
            created_at=identity.created,
            completed_at=None,
            status=status,  # type: ignore[arg-type]
            background=False,
            error=None,
            incomplete_details=None,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            model=identity.model,
            output=list(self._output.items),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            reasoning={"effort": reasoning.effort if reasoning else None, "summary": None},
            store=self._answer.on_done is not None,
            temperature=body.temperature,
            text={"format": (body.text and body.text.format) or {"type": "text"}},
            tool_choice=body.tool_choice or "auto",
            tools=[{"strict": None, "parameters": None, **tool} for tool in body.tools or ()],
            top_p=body.top_p,
            truncation="disabled",
            usage=None,
            user=body.user,
        )


class ResponsesCollector:
    """Gathers the output of one request that isn't streamed."""

    def __init__(self, answer: ResponsesAnswer) -> None:
        self._stream = ResponsesStream(answer, is_told=False)

    def feed(self, index: int, delta: OutputDelta) -> None:
        """Takes new output."""
        self._stream.feed(index, delta)

    def response(self, cached_tokens: int | None = None) -> ResponseObject:
        """The whole response.

        Raises:
            EngineDeadError: the output ended too early.
        """
        return self._stream.response(cached_tokens)
