"""Tool calls in Hermes style, as Qwen3 writes them, out of text that arrives in pieces.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

Text before a call is kept; white space between and after calls and newlines
before one are the format's and are dropped. A block that isn't such a JSON object,
or never ends, is text like any other: nothing that the model wrote gets lost.
Doesn't check names or arguments against the tools of the request.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from qwen3_a8w8.text.partial_match import partial_tail

CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete call.

    Attributes:
        index: 0, 1, ... within the answer.
        call_id: unique, for the tool message that answers it.
        name: of the function.
        arguments: a JSON object as text.
    """

    index: int
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """New text outside calls, and calls that are now complete."""

    content: str = ""
    calls: tuple[ToolCall, ...] = ()


def new_call_id() -> str:
    """A fresh id in OpenAI's form."""
    return f"call_{uuid.uuid4().hex[:24]}"


class ToolCallParser:
    """Incremental parser of one answer.

    Attributes:
        num_calls: calls found so far.
    """

    def __init__(self, make_id: Callable[[], str] = new_call_id) -> None:
        self._make_id = make_id
        self._held = ""
        self._is_inside = False
        self._is_after_call = False
        self._separator = ""
        self._search_from = 0
        self.num_calls = 0

    def feed(self, text: str) -> ToolCallDelta:
        """Takes the next piece; what could belong to a call is held back."""
        self._held += text
        return self._parse(is_final=False)

    def finish(self) -> ToolCallDelta:
        """What was held back, when no more text will come."""
        self._search_from = len(CALL_OPEN)
        return self._parse(is_final=True)

    def _parse(self, *, is_final: bool) -> ToolCallDelta:
        content: list[str] = []
        calls: list[ToolCall] = []
        while True:
            if not self._is_inside:
                content.append(self._take_text(is_final))
                if not self._is_inside:
                    break
            block = self._take_block(is_final)
            if block is None:
                break
            if isinstance(block, ToolCall):
                calls.append(block)
            else:
                content.append(block)
        return ToolCallDelta("".join(content), tuple(calls))

    def _take_text(self, is_final: bool) -> str:
        """Text up to the next opening tag, which stays at the front of what is held."""
        before, tag, _ = self._held.partition(CALL_OPEN)
        text = before.lstrip() if self._is_after_call else before
        if tag:
            # Newlines before a call aren't part of the text, unless it turns out to be none.
            shown = text.rstrip("\n")
            self._separator = text[len(shown) :]
            self._held = self._held[len(before) :]
            self._is_inside = True
            self._search_from = len(CALL_OPEN)
        elif is_final:
            shown, self._held = text, ""
        else:
            num_shown = len(text) - partial_tail(text, CALL_OPEN)
            shown = text[:num_shown].rstrip("\n")
            self._held = text[len(shown) :]
        if shown:
            self._is_after_call = False
        return shown

    def _take_block(self, is_final: bool) -> ToolCall | str | None:
        """The call at the front, or its text if it is none, or None if more has to come."""
        while (close := self._held.find(CALL_CLOSE, self._search_from)) >= 0:
            end = close + len(CALL_CLOSE)
            try:
                name, arguments = parse_call(self._held[len(CALL_OPEN) : close])
            except ValueError as error:
                # A closing tag inside a string of the call doesn't close it.
                if _is_inside_string(error) and not is_final:
                    self._search_from = end
                    continue
                # Only up to the first closing tag: a good call may follow it.
                first = self._held.find(CALL_CLOSE)
                return self._give_back(first + len(CALL_CLOSE))
            self._leave(end, is_call=True)
            call = ToolCall(self.num_calls, self._make_id(), name, arguments)
            self.num_calls += 1
            return call
        if is_final:
            return self._give_back(len(self._held))
        self._search_from = max(self._search_from, len(self._held) - len(CALL_CLOSE) + 1)
        return None

    def _give_back(self, end: int) -> str:
        text = self._separator + self._held[:end]
        self._leave(end, is_call=False)
        return text

    def _leave(self, end: int, *, is_call: bool) -> None:
        self._held = self._held[end:]
        self._is_inside = False
        self._is_after_call = is_call


def _is_inside_string(error: ValueError) -> bool:
    return isinstance(error, json.JSONDecodeError) and error.msg.startswith("Unterminated string")


def parse_call(body: str) -> tuple[str, str]:
    """Name and arguments (JSON text) of what stands between the tags.

    Raises:
        ValueError: it is no JSON object with a name and an object of arguments; a
            `json.JSONDecodeError` where it is no JSON at all.
    """
    # Models write raw newlines into strings; `strict=False` takes them.
    decode = json.JSONDecoder(strict=False, parse_constant=_refuse_constant).decode
    try:
        value = decode(body)
        if not isinstance(value, dict):
            raise ValueError("a call is an object")
        name, arguments = value.get("name"), value.get("arguments", {})
        if isinstance(arguments, str):
            try:
                arguments = decode(arguments)
            except json.JSONDecodeError as error:
                raise ValueError(f"the arguments are no JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("the call is nested too deep") from error
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("a call has a name and an object of arguments")
    return name, json.dumps(arguments, ensure_ascii=False)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")
