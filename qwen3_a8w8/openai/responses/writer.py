"""The response to a `POST /v1/responses`: output deltas in, events or the response object out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.openai.chat.choice import ChatChoice, ChatParsing
from qwen3_a8w8.openai.chat.writer import check_all_finished
from qwen3_a8w8.openai.errors import error_body
from qwen3_a8w8.openai.progress import Progress
from qwen3_a8w8.openai.response import ResponseContext, ResponseWriter
from qwen3_a8w8.openai.responses.output import ResponsesOutput
from qwen3_a8w8.openai.responses.request import ResponsesRequest
from qwen3_a8w8.openai.responses.shapes import (
    InputDetails,
    OutputDetails,
    ResponseEvent,
    ResponseObject,
    ResponsesUsage,
)
from qwen3_a8w8.text.outputs import OutputDelta

OnDone = Callable[[ResponseObject], None]
"""Called with a whole response before it is sent."""


class ResponsesWriter(ResponseWriter[ResponseEvent, ResponseObject]):
    """Writes the events of one response; the last of them has the whole."""

    def __init__(
        self,
        body: ResponsesRequest,
        on_done: OnDone | None,
        context: ResponseContext,
        parsing: ChatParsing,
    ) -> None:
        """Makes the writer.

        Args:
            body: the request as it was sent.
            on_done: keeps the response; None: it isn't kept.
            context: of the request.
            parsing: how the output is split.
        """
        self._body = body
        self._on_done = on_done
        self._context = context
        self._progress = Progress(context)
        self._choice = ChatChoice(parsing, is_streamed=context.is_streamed)
        self._output = ResponsesOutput(body.custom_tools)

    def begin(self) -> list[ResponseEvent]:
        """The events of a response that has started."""
        return [
            self._output.event(f"response.{kind}", response=self.object("in_progress"))
            for kind in ("created", "in_progress")
        ]

    def feed(self, index: int, delta: OutputDelta) -> list[ResponseEvent]:
        """Events for new output; there is one choice."""
        self._progress.add(index, delta)
        return list(self._output.feed(self._choice.feed(delta)))

    def finish(self) -> list[ResponseEvent]:
        """The event with the whole response.

        Raises:
            EngineDeadError: the output ended too early.
        """
        response = self._done()
        return [self._output.event(f"response.{response.status}", response=response)]

    def fail(self, error: Exception, code: str | None) -> list[ResponseEvent]:
        """The event with the reason."""
        return [self._output.event("response.failed", response=self._failed(error, code))]

    def keep_failed(self, error: Exception, code: str | None) -> None:
        """Keeps the response with the reason; for one without a reader."""
        if self._on_done is not None:
            self._on_done(self._failed(error, code))

    def cancel(self) -> None:
        """Keeps the response as one that was cancelled, with what there is of it."""
        if self._on_done is not None:
            self._on_done(self.object("cancelled"))

    def _failed(self, error: Exception, code: str | None) -> ResponseObject:
        response = self.object("failed")
        message = error_body(error, code=code)["error"]["message"]
        response.error = {"code": "server_error", "message": message}
        return response

    def whole(self, events: Sequence[ResponseEvent]) -> ResponseObject:
        """The response in the last event."""
        response = events[-1].response
        assert response is not None  # `finish` gives it
        return response

    def _done(self) -> ResponseObject:
        check_all_finished([self._choice])
        is_cut = self._choice.finish_reason == "length"
        response = self.object("incomplete" if is_cut else "completed")
        if is_cut:
            response.incomplete_details = {"reason": "max_output_tokens"}
        response.completed_at = None if is_cut else int(time.time())
        response.usage = self._usage()
        if self._on_done is not None:
            self._on_done(response)
        return response

    def _usage(self) -> ResponsesUsage:
        num_input = self._context.num_prompt_tokens
        choice, cached_tokens = self._choice, self._progress.cached_tokens
        return ResponsesUsage(
            input_tokens=num_input,
            input_tokens_details=InputDetails(
                cached_tokens=cached_tokens, cache_write_tokens=num_input - cached_tokens
            ),
            output_tokens=choice.num_tokens,
            output_tokens_details=OutputDetails(reasoning_tokens=choice.num_reasoning_tokens),
            total_tokens=num_input + choice.num_tokens,
        )

    def _metadata(self) -> dict[str, Any]:
        metadata = dict(self._body.metadata or {})
        if skipped := ", ".join(self._body.skipped_tools):
            metadata.setdefault(
                "warnings",
                f"tools of types that this server doesn't run were left out: {skipped}"[:512],
            )
        return metadata

    def object(self, status: str) -> ResponseObject:
        """The response as it is now, with a status."""
        body, identity = self._body, self._context.identity
        sampling = self._context.sampling or SamplingParams()
        reasoning = body.reasoning
        return ResponseObject(
            id=identity.id,
            object="response",
            created_at=identity.created,
            completed_at=None,
            status=status,  # type: ignore[arg-type]
            background=bool(body.background),
            error=None,
            incomplete_details=None,
            frequency_penalty=sampling.frequency_penalty,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            max_tool_calls=body.max_tool_calls,
            metadata=self._metadata(),
            model=identity.model,
            output=list(self._output.items),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            presence_penalty=sampling.presence_penalty,
            previous_response_id=body.previous_response_id,
            prompt_cache_key=body.prompt_cache_key,
            reasoning={"effort": reasoning.effort if reasoning else None, "summary": None},
            safety_identifier=body.safety_identifier,
            service_tier="default",
            store=self._on_done is not None,
            temperature=sampling.temperature,
            text={"format": (body.text and body.text.format) or {"type": "text"}},
            tool_choice=body.tool_choice or "auto",
            tools=[_with_all_fields(tool) for tool in body.tools or ()],
            top_logprobs=body.top_logprobs or 0,
            top_p=sampling.top_p,
            truncation="disabled",
            usage=None,
            user=body.user,
        )


def _with_all_fields(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as the response repeats it: a function has all its fields."""
    if tool.get("type") != "function":
        return tool
    return {"strict": None, "parameters": None, **tool}
