"""Tool calls in Hermes style, as Qwen3 writes them, out of text that arrives in pieces.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

Text before a call is kept; white space between and after calls and newlines
before one are the format's and are dropped. A block that isn't such a JSON object,
or never ends, is text like any other: nothing that the model wrote gets lost.
Doesn't check names or arguments against the tools of the request.

A call is told from its name on, its arguments as they are written. Their last brace comes with the
call's closing tag: until then they are no JSON, so that nobody can take a call that turns
out to be malformed for a good one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
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
    """The answer reached its length within the call; the arguments are a beginning."""
    MALFORMED = "malformed"
    """It was none; its text follows as text."""


@dataclass(frozen=True, slots=True)
class CallPart:
    """What is new of a call.

    Attributes:
        index: 0, 1, ... of the call within the answer.
        call_id: unique, for the tool message that answers the call.
        name: of the function.
        arguments: new text of the JSON object; may be empty.
        is_first: nothing was told of the call before.
        end: set with its last part.
    """

    index: int
    call_id: str
    name: str
    arguments: str
    is_first: bool
    end: CallEnd | None


AnswerPart = str | CallPart
"""Text outside calls, or part of a call."""


class WholeCalls:
    """Holds a call back until it has ended, for answers that aren't streamed.

    Each call then is one part; one that turned out to be malformed is none, and its text is
    there as text.
    """

    def __init__(self) -> None:
        self._held: list[CallPart] = []

    def feed(self, parts: Iterable[AnswerPart]) -> list[AnswerPart]:
        """Text as it comes, calls once they have ended."""
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
    """A fresh id in OpenAI's form."""
    return f"call_{uuid.uuid4().hex[:24]}"


class ToolCallParser:
    """Incremental parser of one answer.

    Attributes:
        num_calls: whole calls so far.
    """

    def __init__(self, make_id: Callable[[], str] = new_call_id) -> None:
        self._make_id = make_id
        self._held = ""  # text that may begin a call, or that of the call from behind its tag on
        self._is_after_call = False
        self._separator = ""
        self._reader: CallReader | None = None
        self._num_read = 0
        self._call_id: str | None = None
        self._num_begun = 0
        self.num_calls = 0

    def feed(self, text: str) -> list[AnswerPart]:
        """Takes the next piece; what could belong to a call's tag is held back."""
        self._held += text
        parts: list[AnswerPart] = []
        self._parse(parts)
        return parts

    def finish(self, *, is_cut: bool) -> list[AnswerPart]:
        """What was held back, when no more text will come.

        Args:
            is_cut: the answer reached its length, so that a call at its end may be incomplete.
        """
        parts: list[AnswerPart] = []
        self._parse(parts)
        while self._reader is not None:
            if is_cut and self._reader.is_begun:
                self._tell(parts, self._reader, CallEnd.CUT)
                self._held = ""
                self._reader = None
            else:
                self._give_back(parts, self._reader)
                self._parse(parts)
        self._show(parts, len(self._held))
        return parts

    def _parse(self, parts: list[AnswerPart]) -> None:
        """Goes on until more text has to come."""
        while True:
            if self._reader is None and not self._find_call(parts):
                return
            if self._reader is not None and not self._read_call(parts, self._reader):
                return

    def _find_call(self, parts: list[AnswerPart]) -> bool:
        """Takes text up to an opening tag; whether there is one."""
        begin = self._held.find(CALL_OPEN)
        end = len(self._held) - partial_tail(self._held, CALL_OPEN) if begin < 0 else begin
        # Newlines before a call aren't part of the text, unless it turns out to be none.
        self._show(parts, len(self._held[:end].rstrip("\n")))
        if begin < 0:
            return False
        self._separator, _, self._held = self._held.partition(CALL_OPEN)
        if self._is_after_call:
            self._separator = ""
        self._reader, self._num_read, self._call_id = CallReader(), 0, None
        return True

    def _show(self, parts: list[AnswerPart], end: int) -> None:
        text, self._held = self._held[:end], self._held[end:]
        if self._is_after_call:
            text = text.lstrip()
        if text:
            self._is_after_call = False
            _add_text(parts, text)

    def _read_call(self, parts: list[AnswerPart], reader: CallReader) -> bool:
        """Reads on in a call; whether it has ended."""
        try:
            while self._num_read < len(self._held):
                char = self._held[self._num_read]
                if reader.is_whole and char == "<":
                    break
                reader.feed(char)
                self._num_read += 1
        except JsonReadError:
            self._give_back(parts, reader)
            return True
        tag = self._held[self._num_read : self._num_read + len(CALL_CLOSE)]
        if tag == CALL_CLOSE:
            self._tell(parts, reader, CallEnd.WHOLE)
            self._held = self._held[self._num_read + len(CALL_CLOSE) :]
            self._reader, self._is_after_call = None, True
            self.num_calls += 1
            return True
        if not CALL_CLOSE.startswith(tag):
            self._give_back(parts, reader)
            return True
        if reader.is_begun:
            self._tell(parts, reader, None)
        return False

    def _tell(self, parts: list[AnswerPart], reader: CallReader, end: CallEnd | None) -> None:
        is_first = self._call_id is None
        if self._call_id is None:
            self._call_id = self._make_id()
            self._num_begun += 1
        arguments = reader.take_arguments(has_last=end in (CallEnd.WHOLE, CallEnd.CUT))
        if is_first or arguments or end is not None:
            index, name = self._num_begun - 1, reader.name or ""
            parts.append(CallPart(index, self._call_id, name, arguments, is_first, end))

    def _give_back(self, parts: list[AnswerPart], reader: CallReader) -> None:
        """Makes a block text; what follows its tag is looked through again."""
        if self._call_id is not None:
            self._tell(parts, reader, CallEnd.MALFORMED)
        _add_text(parts, self._separator + CALL_OPEN)
        self._reader, self._is_after_call = None, False


def _add_text(parts: list[AnswerPart], text: str) -> None:
    if parts and isinstance(parts[-1], str):
        parts[-1] += text
    else:
        parts.append(text)
