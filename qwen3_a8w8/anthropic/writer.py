"""The response to a `POST /v1/messages`: output deltas in, events or the message out."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pydantic_core import from_json

from qwen3_a8w8.anthropic.errors import message_error
from qwen3_a8w8.anthropic.shapes import (
    Content,
    MessageEvent,
    MessageObject,
    MessageUsage,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolUseContent,
)
from qwen3_a8w8.openai.chat.choice import ChatChoice, ChatParsing, ChatPiece
from qwen3_a8w8.openai.chat.writer import check_all_finished
from qwen3_a8w8.openai.progress import Progress
from qwen3_a8w8.openai.response import ResponseContext, ResponseWriter
from qwen3_a8w8.text.outputs import OutputDelta
from qwen3_a8w8.text.tool_calls import CallPart


def _new_call_id() -> str:
    return f"toolu_{uuid.uuid4().hex[:24]}"


class MessagesWriter(ResponseWriter[MessageEvent, MessageObject]):
    """Writes the events of one message, block by block; one block is open at a time."""

    def __init__(self, context: ResponseContext, parsing: ChatParsing) -> None:
        """Makes the writer.

        Args:
            context: of the request.
            parsing: how the output is split.
        """
        self._context = context
        self._progress = Progress(context)
        parsing = replace(parsing, make_call_id=_new_call_id)
        self._choice = ChatChoice(parsing, is_streamed=context.is_streamed)
        self._content: list[Content] = []
        self._arguments = ""  # of the open call
        self._blank = ""  # white space that may begin a text, if one follows
        self._is_open = False
        self._has_calls = False
        self._stop_sequence: str | None = None

    def begin(self) -> list[MessageEvent]:
        """The event with the message that has no content yet."""
        return [MessageEvent(type="message_start", message=self._message(None))]

    def feed(self, index: int, delta: OutputDelta) -> list[MessageEvent]:
        """Events for new output; there is one choice."""
        self._progress.add(index, delta)
        piece = self._choice.feed(delta)
        if isinstance(piece.stop_reason, str):
            self._stop_sequence = piece.stop_reason
        return list(self._events(piece))

    def finish(self) -> list[MessageEvent]:
        """The events with the stop reason and the usage.

        Raises:
            EngineDeadError: the output ended too early.
        """
        check_all_finished([self._choice])
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": self._stop_sequence}
        return [
            MessageEvent(type="message_delta", delta=delta, usage=self._usage()),
            MessageEvent(type="message_stop"),
        ]

    def fail(self, error: Exception, code: str | None) -> list[MessageEvent]:
        """The event with the reason."""
        del code
        return [MessageEvent(type="error", error=message_error(error)["error"])]

    def whole(self, events: Sequence[MessageEvent]) -> MessageObject:
        """The message that isn't streamed."""
        del events
        return self._message(self._stop_reason())

    def _events(self, piece: ChatPiece) -> Iterator[MessageEvent]:
        if piece.reasoning:
            yield from self._thought(piece.reasoning)
        for part in piece.parts:
            if isinstance(part, CallPart):
                self._blank = ""
                yield from self._call(part)
            elif part.strip() or self._is_in(TextContent):
                text, self._blank = self._blank + part, ""
                yield from self._text(text)
            else:
                # A block of white space alone is no answer, and Anthropic's own servers refuse it
                # in a history.
                self._blank += part
        if piece.finish_reason is not None:
            yield from self._close()

    def _thought(self, text: str) -> Iterator[MessageEvent]:
        if not self._is_in(ThinkingContent):
            yield from self._close()
            yield from self._open(ThinkingContent(type="thinking", thinking="", signature=""))
        block = self._content[-1]
        assert isinstance(block, ThinkingContent)
        block.thinking += text
        yield self._delta("thinking_delta", thinking=text)

    def _text(self, text: str) -> Iterator[MessageEvent]:
        if not self._is_in(TextContent):
            yield from self._close()
            yield from self._open(TextContent(type="text", text=""))
        block = self._content[-1]
        assert isinstance(block, TextContent)
        block.text += text
        yield self._delta("text_delta", text=text)

    def _is_in(self, kind: type[Content]) -> bool:
        return self._is_open and isinstance(self._content[-1], kind)

    def _call(self, part: CallPart) -> Iterator[MessageEvent]:
        self._has_calls = True
        if part.is_first:
            yield from self._close()
            self._arguments = ""
            yield from self._open(
                ToolUseContent(type="tool_use", id=part.call_id, name=part.name, input={})
            )
        if part.arguments:
            self._arguments += part.arguments
            yield self._delta("input_json_delta", partial_json=part.arguments)
        if part.end is not None:
            block = self._content[-1]
            assert isinstance(block, ToolUseContent)
            # Arguments that are cut have what is complete of them; the stop reason says so.
            arguments = from_json(self._arguments or "{}", allow_partial=True)
            block.input = arguments if isinstance(arguments, dict) else {}
            yield from self._close()

    def _open(self, block: Content) -> Iterator[MessageEvent]:
        self._content.append(block)
        self._is_open = True
        yield MessageEvent(
            type="content_block_start",
            index=len(self._content) - 1,
            content_block=block.model_copy(),
        )

    def _close(self) -> Iterator[MessageEvent]:
        if not self._is_open:
            return
        if isinstance(self._content[-1], ThinkingContent):
            yield self._delta("signature_delta", signature="")
        yield MessageEvent(type="content_block_stop", index=len(self._content) - 1)
        self._is_open = False

    def _delta(self, kind: str, **fields: Any) -> MessageEvent:
        return MessageEvent(
            type="content_block_delta",
            index=len(self._content) - 1,
            delta={"type": kind, **fields},
        )

    def _stop_reason(self) -> StopReason:
        if self._stop_sequence is not None:
            return "stop_sequence"
        if self._choice.finish_reason == "length":
            return "max_tokens"
        return "tool_use" if self._has_calls else "end_turn"

    def _usage(self) -> MessageUsage:
        cached = self._progress.cached_tokens
        return MessageUsage(
            input_tokens=self._context.num_prompt_tokens - cached,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=cached,
            output_tokens=self._choice.num_tokens,
        )

    def _message(self, stop_reason: StopReason | None) -> MessageObject:
        identity = self._context.identity
        return MessageObject(
            id=identity.id,
            type="message",
            role="assistant",
            model=identity.model,
            content=list(self._content),
            stop_reason=stop_reason,
            stop_sequence=self._stop_sequence,
            usage=self._usage(),
        )
