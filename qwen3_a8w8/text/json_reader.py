"""Checks one JSON object character by character while it is generated.

Implements the grammar of RFC 8259 and doesn't interpret the object. An error is raised at the
first character that can't continue an object.
"""

from __future__ import annotations

import json
from enum import Enum, auto

MAX_DEPTH = 200
"""Deepest nesting accepted; the same as in requests, so that every call can be sent back."""


class JsonReadError(ValueError):
    """The text isn't a JSON object."""


class JsonState(Enum):
    """What may follow."""

    OBJECT = auto()
    """The object itself."""
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    FIRST_ITEM = auto()
    AFTER_VALUE = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    LITERAL = auto()
    NUMBER = auto()
    END = auto()
    """Only white space."""


_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}

# Which part of a number may follow which; digits are "9", a leading zero is "0".
_NUMBER = {
    "-": {"0": "0", "9": "int"},
    "0": {".": ".", "e": "e"},
    "int": {"0": "int", "9": "int", ".": ".", "e": "e"},
    ".": {"0": "fraction", "9": "fraction"},
    "fraction": {"0": "fraction", "9": "fraction", "e": "e"},
    "e": {"+": "sign", "-": "sign", "0": "exponent", "9": "exponent"},
    "sign": {"0": "exponent", "9": "exponent"},
    "exponent": {"0": "exponent", "9": "exponent"},
}
_NUMBER_ENDS = ("0", "int", "fraction", "exponent")
_NUMBER_KINDS = dict.fromkeys("123456789", "9") | {"E": "e"}


class JsonReader:
    """Reads one object.

    Attributes:
        state: what may follow.
        depth: objects and lists that are open.
    """

    def __init__(self) -> None:
        self.state = JsonState.OBJECT
        self._open: list[str] = []
        self._is_key = False
        self._rest = ""
        self._number = ""
        self._num_hex = 0

    @property
    def depth(self) -> int:
        """Objects and lists that are open."""
        return len(self._open)

    def feed(self, char: str) -> str:
        """Takes the next character.

        Returns:
            The character in valid JSON: models write raw newlines into strings, which JSON
            requires to be escaped.

        Raises:
            JsonReadError: it isn't allowed here.
        """
        state = self.state
        if state is JsonState.STRING:
            return self._in_string(char)
        if state is JsonState.ESCAPE or state is JsonState.HEX:
            self._escaped(char)
        elif state is JsonState.LITERAL:
            self._check(self._rest[0] == char, char)
            self._rest = self._rest[1:]
            if not self._rest:
                self.state = JsonState.AFTER_VALUE
        elif not (state is JsonState.NUMBER and self._in_number(char)) and char not in " \t\n\r":
            self._structure(char)
        return char

    def _in_string(self, char: str) -> str:
        if char == '"':
            self.state = JsonState.COLON if self._is_key else JsonState.AFTER_VALUE
        elif char == "\\":
            self.state = JsonState.ESCAPE
        elif char < " ":
            return json.dumps(char)[1:-1]
        return char

    def _escaped(self, char: str) -> None:
        if self.state is JsonState.HEX:
            self._check(char in "0123456789abcdefABCDEF", char)
            self._num_hex -= 1
            self.state = JsonState.HEX if self._num_hex else JsonState.STRING
        elif char == "u":
            self._num_hex = 4
            self.state = JsonState.HEX
        else:
            self._check(char in '"\\/bfnrt', char)
            self.state = JsonState.STRING

    def _in_number(self, char: str) -> bool:
        """Whether the character belongs to the number; one that doesn't ends it."""
        following = _NUMBER[self._number].get(_NUMBER_KINDS.get(char, char))
        if following is None:
            self._check(self._number in _NUMBER_ENDS, char)
            self.state = JsonState.AFTER_VALUE
            return False
        self._number = following
        return True

    def _structure(self, char: str) -> None:
        state = self.state
        if state is JsonState.OBJECT:
            self._check(char == "{", char)
            self._start_value(char)
        elif state is JsonState.VALUE or (state is JsonState.FIRST_ITEM and char != "]"):
            self._start_value(char)
        elif state is JsonState.KEY or (state is JsonState.FIRST_KEY and char != "}"):
            self._check(char == '"', char)
            self._is_key = True
            self.state = JsonState.STRING
        elif state is JsonState.COLON:
            self._check(char == ":", char)
            self.state = JsonState.VALUE
        elif state is JsonState.AFTER_VALUE and char == ",":
            self.state = JsonState.KEY if self._open[-1] == "}" else JsonState.VALUE
        else:
            self._check(bool(self._open) and char == self._open[-1], char)
            self._open.pop()
            self.state = JsonState.AFTER_VALUE if self._open else JsonState.END

    def _start_value(self, char: str) -> None:
        if char in "{[":
            self._check(self.depth < MAX_DEPTH, char)
            self._open.append("}" if char == "{" else "]")
            self.state = JsonState.FIRST_KEY if char == "{" else JsonState.FIRST_ITEM
        elif char == '"':
            self._is_key = False
            self.state = JsonState.STRING
        elif char in _LITERALS:
            self._rest = _LITERALS[char]
            self.state = JsonState.LITERAL
        else:
            self._check(char in "-0123456789", char)
            self._number = char if char in "-0" else "int"
            self.state = JsonState.NUMBER

    def _check(self, is_valid: bool, char: str) -> None:
        if not is_valid:
            raise JsonReadError(f"{char!r} isn't allowed here")


def object_text(text: str) -> str:
    """An object in valid JSON, without the white space around it.

    Raises:
        JsonReadError: the text isn't a JSON object.
    """
    reader = JsonReader()
    read = "".join(map(reader.feed, text.strip(" \t\n\r")))
    if reader.state is not JsonState.END:
        raise JsonReadError("the object isn't closed")
    return read
