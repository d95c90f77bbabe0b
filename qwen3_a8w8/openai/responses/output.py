"""Output items of a response as they grow, each with its events.

Reasoning, text and calls of the answer become items in the order in which the model
wrote them; one item is open at a time.
"""

from __future__ import annotations

import uuid
from collections.abc import Container, Iterator
from typing import Any

from qwen3_a8w8.openai.chat.choice import ChatPiece
from qwen3_a8w8.openai.chat.shapes import ContentLogprob, make_choice_logprobs
from qwen3_a8w8.openai.responses.shapes import (
    CallItem,
    CustomCallItem,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseEvent,
)
from qwen3_a8w8.openai.responses.tools import input_so_far, whole_input
from qwen3_a8w8.text.tool_calls import CallEnd, CallPart


class ResponsesOutput:
    """The items of one answer.

    Attributes:
        items: what there is so far; the last one may still grow.
    """

    def __init__(self, custom_tools: Container[str] = ()) -> None:
        """Starts an empty answer.

        Args:
            custom_tools: names of the tools whose input is free text.
        """
        self._custom_tools = custom_tools
        self.items: list[OutputItem] = []
        self._call_item: CallItem | CustomCallItem | None = None
        self._arguments = ""
        self._logprobs: list[ContentLogprob] = []  # of tokens whose text hasn't come yet
        self._open: MessageItem | ReasoningItem | None = None
        self._num_events = 0

    def event(self, kind: str, **fields: Any) -> ResponseEvent:
        """The next event of the stream, numbered."""
        event = ResponseEvent(type=kind, sequence_number=self._num_events, **fields)
        self._num_events += 1
        return event

    def feed(self, piece: ChatPiece) -> Iterator[ResponseEvent]:
        """Events for what a piece adds."""
        entries = piece.logprobs[piece.num_reasoning_tokens :]
        if logprobs := make_choice_logprobs(entries):
            self._logprobs += logprobs.content
        if piece.reasoning:
            yield from self._text(piece.reasoning, ReasoningItem)
        for part in piece.parts:
            if isinstance(part, CallPart):
                yield from self._call(part)
            elif part.strip() or isinstance(self._open, MessageItem):
                yield from self._text(part, MessageItem)
        if piece.finish_reason is not None:
            yield from self._close("incomplete" if piece.finish_reason == "length" else "completed")

    def _text(
        self, text: str, kind: type[MessageItem] | type[ReasoningItem]
    ) -> Iterator[ResponseEvent]:
        if not isinstance(self._open, kind):
            yield from self._close("completed")
            yield from self._begin(kind)
        item = self._open
        assert item is not None
        item.content[0].text += text
        if isinstance(item, MessageItem):
            logprobs, self._logprobs = self._logprobs, []
            item.content[0].logprobs += logprobs
            yield self.event(
                "response.output_text.delta", delta=text, logprobs=logprobs, **self._part_place()
            )
        else:
            yield self.event("response.reasoning_text.delta", delta=text, **self._part_place())

    def _begin(self, kind: type[MessageItem] | type[ReasoningItem]) -> Iterator[ResponseEvent]:
        item = _new_message() if kind is MessageItem else _new_reasoning()
        self._open = item
        self.items.append(item)
        # The item's event comes without its part, which has an event of its own.
        empty = item.model_copy(update={"content": []})
        yield self._item_event("response.output_item.added", empty)
        part = item.content[0].model_copy(deep=True)
        yield self.event("response.content_part.added", part=part, **self._part_place())

    def _close(self, status: ItemStatus) -> Iterator[ResponseEvent]:
        item, place = self._open, self._part_place()
        if item is None:
            return
        part = item.content[0]
        if isinstance(part, OutputText):
            done = {"text": part.text, "logprobs": part.logprobs}
            yield self.event("response.output_text.done", **done, **place)
        else:
            yield self.event("response.reasoning_text.done", text=part.text, **place)
        yield self.event("response.content_part.done", part=part, **place)
        item.status = status
        yield self._item_event("response.output_item.done", item)
        self._open = None

    def _call(self, part: CallPart) -> Iterator[ResponseEvent]:
        if part.is_first:
            yield from self._begin_call(part)
        item = self._call_item
        assert item is not None
        place = {"item_id": item.id, "output_index": len(self.items) - 1}
        self._arguments += part.arguments
        if isinstance(item, CustomCallItem):
            yield from self._custom_call(item, part, place)
        else:
            item.arguments = self._arguments
            if delta := part.arguments:
                yield self.event("response.function_call_arguments.delta", delta=delta, **place)
            if part.end is not None:
                done = {"arguments": item.arguments, "name": item.name}
                yield self.event("response.function_call_arguments.done", **done, **place)
        if part.end is not None:
            # A call that is malformed stays, incomplete: clients have seen it. Its text follows.
            item.status = "completed" if part.end is CallEnd.WHOLE else "incomplete"
            yield self._item_event("response.output_item.done", item)
            self._call_item = None

    def _custom_call(
        self, item: CustomCallItem, part: CallPart, place: dict[str, Any]
    ) -> Iterator[ResponseEvent]:
        is_whole = part.end is CallEnd.WHOLE
        text = (whole_input if is_whole else input_so_far)(self._arguments)
        if delta := text[len(item.input) :]:
            yield self.event("response.custom_tool_call_input.delta", delta=delta, **place)
        item.input = text
        if part.end is not None:
            yield self.event("response.custom_tool_call_input.done", input=text, **place)

    def _begin_call(self, part: CallPart) -> Iterator[ResponseEvent]:
        yield from self._close("completed")
        self._arguments = ""
        item: CallItem | CustomCallItem
        common: Any = {"status": "in_progress", "call_id": part.call_id, "name": part.name}
        if part.name in self._custom_tools:
            item = CustomCallItem(id=_new_id("ctc"), type="custom_tool_call", input="", **common)
        else:
            item = CallItem(id=_new_id("fc"), type="function_call", arguments="", **common)
        self._call_item = item
        self.items.append(item)
        yield self._item_event("response.output_item.added", item)

    def _item_event(self, kind: str, item: OutputItem) -> ResponseEvent:
        copy = item.model_copy(deep=True)
        return self.event(kind, item=copy, output_index=len(self.items) - 1)

    def _part_place(self) -> dict[str, Any]:
        item_id = "" if self._open is None else self._open.id
        return {"item_id": item_id, "output_index": len(self.items) - 1, "content_index": 0}


def _new_message() -> MessageItem:
    text = OutputText(type="output_text", text="", annotations=[], logprobs=[])
    return MessageItem(
        id=_new_id("msg"), type="message", status="in_progress", role="assistant", content=[text]
    )


def _new_reasoning() -> ReasoningItem:
    text = ReasoningText(type="reasoning_text", text="")
    return ReasoningItem(
        id=_new_id("rs"), type="reasoning", status="in_progress", summary=[], content=[text]
    )


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"
