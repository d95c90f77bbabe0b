"""Parses tool calls in Hermes style, as Qwen3 writes them, from streamed text.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

Text before a call is kept; white space between and after calls and newlines
before one belong to the format and are dropped. A block that isn't such a JSON
object, never ends, or names a tool that wasn't offered is treated as text: nothing that the
model wrote gets lost. Doesn't check arguments against the tools of the request.

A call is emitted once its name is known, its arguments as the model writes them. The last brace
is emitted with the call's closing tag: until then the arguments aren't valid JSON, so that a
client can't mistake a malformed call for a valid one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from enum import Enum

from qwen3_a8w8.text.call_reader import CallReader
from qwen3_a8w8.text.json_reader import JsonReadError
from qwen3_a8w8.text.reasoning import partial_tail

CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"


class CallEnd(Enum):
    """How a call ended."""

    WHOLE = "whole"
    CUT = "cut"
    """The output reached its length within the call; the arguments are truncated."""
    MALFORMED = "malformed"
    """It wasn't a call; its text follows as content."""


@dataclass(frozen=True, slots=True)
class CallPart:
    """An update of a call.

    Attributes:
        index: 0, 1, ... of the call within the output.
        call_id: unique, for the tool message with the call's result.
        name: of the function.
        arguments: new text of the JSON object; may be empty.
        is_first: the first update of the call.
        end: set in the last update.
    """

    index: int
    call_id: str
    name: str
    arguments: str
    is_first: bool
    end: CallEnd | None


AnswerPart = str | CallPart
"""Text outside calls, or an update of a call."""


class WholeCalls:
    """Holds each call back until it has ended, for outputs that aren't streamed.

    A complete call is then one update; a malformed one is dropped, and its text follows as text.
    """

    def __init__(self) -> None:
        self._held: list[CallPart] = []

    def feed(self, parts: Iterable[AnswerPart]) -> list[AnswerPart]:
        """Text immediately, calls once they have ended."""
        whole: list[AnswerPart] = []
        for part in parts:
            if isinstance(part, str):
                whole.append(part)
                continue
            self._held.append(part)
            if part.end is None:
                continue
            if part.end is not CallEnd.MALFORMED:
                arguments = "".join(held.arguments for held in self._held)
                whole.append(replace(part, arguments=arguments, is_first=True))
            self._held.clear()
        return whole


def new_call_id() -> str:
    """A new id in OpenAI's format."""
    return f"call_{uuid.uuid4().hex[:24]}"


class ToolCallParser:
    """Incremental parser of one output.

    Attributes:
        num_calls: complete calls so far.
    """

    def __init__(
        self,
        make_id: Callable[[], str] = new_call_id,
        *,
        names: Container[str] | None = None,
        is_required: bool = False,
    ) -> None:
        """Starts an output.

        Args:
            make_id: gives a call its id.
            names: tools that were offered; None: any name is one.
            is_required: the output has to be a call, so that the start of one is never text.
        """
        self._make_id = make_id
        self._names = names
        self._is_required = is_required
        self._held = ""  # text that may start a call, or the text of a call after its opening tag
        self._is_after_call = False
        self._separator = ""
        self._reader: CallReader | None = None
        self._num_read = 0
        self._call_id: str | None = None
        self._num_started = 0
        self.num_calls = 0

    def feed(self, text: str) -> list[AnswerPart]:
        """Takes the next text; a suffix that could belong to a call's tag is held back."""
        self._held += text
        parts: list[AnswerPart] = []
        self._parse(parts)
        return parts

    def finish(self, *, is_cut: bool) -> list[AnswerPart]:
        """Returns what was held back, at the end of the output.

        Args:
            is_cut: the output reached its length, so that a call at its end may be incomplete.
        """
        parts: list[AnswerPart] = []
        self._parse(parts)
        while self._reader is not None:
            if is_cut and self._reader.has_started:
                self._emit_call(parts, self._reader, CallEnd.CUT)
                self._held = ""
                self._reader = None
            elif is_cut and self._is_required:
                self._held = ""
                self._reader = None
            else:
                self._emit_as_text(parts, self._reader)
                self._parse(parts)
        if is_cut and self._is_required:
            self._held = self._held[: len(self._held) - partial_tail(self._held, CALL_OPEN)]
        self._emit_text(parts, len(self._held))
        return parts

    def _parse(self, parts: list[AnswerPart]) -> None:
        """Parses until it needs more text."""
        while True:
            if self._reader is None and not self._find_call(parts):
                return
            if self._reader is not None and not self._read_call(parts, self._reader):
                return

    def _find_call(self, parts: list[AnswerPart]) -> bool:
        """Emits text up to an opening tag; returns whether there is one."""
        start = self._held.find(CALL_OPEN)
        end = len(self._held) - partial_tail(self._held, CALL_OPEN) if start < 0 else start
        # Newlines before a call aren't part of the text, unless it turns out to be malformed.
        self._emit_text(parts, len(self._held[:end].rstrip("\n")))
        if start < 0:
            return False
        self._separator, _, self._held = self._held.partition(CALL_OPEN)
        if self._is_after_call:
            self._separator = ""
        self._reader, self._num_read, self._call_id = CallReader(), 0, None
        return True

    def _emit_text(self, parts: list[AnswerPart], end: int) -> None:
        text, self._held = self._held[:end], self._held[end:]
        if self._is_after_call:
            text = text.lstrip()
        if text:
            self._is_after_call = False
            _add_text(parts, text)

    def _read_call(self, parts: list[AnswerPart], reader: CallReader) -> bool:
        """Continues to read a call; returns whether it has ended."""
        try:
            while self._num_read < len(self._held):
                char = self._held[self._num_read]
                if reader.is_complete and char == "<":
                    break
                reader.feed(char)
                self._num_read += 1
        except JsonReadError:
            self._emit_as_text(parts, reader)
            return True
        if reader.name is not None and self._names is not None and reader.name not in self._names:
            self._emit_as_text(parts, reader)
            return True
        tag = self._held[self._num_read : self._num_read + len(CALL_CLOSE)]
        if tag == CALL_CLOSE:
            self._emit_call(parts, reader, CallEnd.WHOLE)
            self._held = self._held[self._num_read + len(CALL_CLOSE) :]
            self._reader, self._is_after_call = None, True
            self.num_calls += 1
            return True
        if not CALL_CLOSE.startswith(tag):
            self._emit_as_text(parts, reader)
            return True
        if reader.has_started:
            self._emit_call(parts, reader, None)
        return False

    def _emit_call(self, parts: list[AnswerPart], reader: CallReader, end: CallEnd | None) -> None:
        is_first = self._call_id is None
        if self._call_id is None:
            self._call_id = self._make_id()
            self._num_started += 1
        arguments = reader.take_arguments(has_last=end in (CallEnd.WHOLE, CallEnd.CUT))
        if is_first or arguments or end is not None:
            index, name = self._num_started - 1, reader.name or ""
            parts.append(CallPart(index, self._call_id, name, arguments, is_first, end))

    def _emit_as_text(self, parts: list[AnswerPart], reader: CallReader) -> None:
        """Emits a block's opening tag as text; what follows the tag is parsed again."""
        if self._call_id is not None:
            self._emit_call(parts, reader, CallEnd.MALFORMED)
        _add_text(parts, self._separator + CALL_OPEN)
        self._reader, self._is_after_call = None, False


def _add_text(parts: list[AnswerPart], text: str) -> None:
    if parts and isinstance(parts[-1], str):
        parts[-1] += text
    else:
        parts.append(text)
