"""Streaming parser of a tool call's body: `{"name": ..., "arguments": {...}}`.

Arguments are emitted as the model wrote them, not parsed and serialised again: only then can
they stream while they are generated. Control characters in strings are escaped, as JSON requires.
"""

from __future__ import annotations

import json

from qwen3_a8w8.text.json_reader import JsonReader, JsonReadError, JsonState, object_text

_KEY_STATES = (JsonState.FIRST_KEY, JsonState.KEY)
_TOKEN_ENDS = (JsonState.COLON, JsonState.AFTER_VALUE)


class CallReader:
    """Reads one call, character by character.

    Arguments may also precede the name, be an object encoded as a string, or be missing,
    which means `{}`. Other keys are ignored; a duplicate key is an error.

    Attributes:
        name: of the function; None until it is known.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._json = JsonReader()
        self._key: str | None = None
        self._keys: set[str] = set()
        self._value: list[str] | None = None  # the key, name or arguments being read
        self._arguments: list[str] | None = None
        self._is_closed = False
        self._num_emitted = 0

    @property
    def is_complete(self) -> bool:
        """The object is closed; only white space may follow."""
        return self._json.state is JsonState.END

    @property
    def has_started(self) -> bool:
        """The name is known, and at least the opening brace of the arguments."""
        return self.name is not None and self._arguments is not None

    def feed(self, char: str) -> None:
        """Takes the next character.

        Raises:
            JsonReadError: the text isn't a call.
        """
        reader = self._json
        depth, state = reader.depth, reader.state
        text = reader.feed(char)
        if depth == 1 and state in _KEY_STATES and reader.state is JsonState.STRING:
            self._value = []
        elif depth == 1 and state is JsonState.VALUE and reader.state is not JsonState.VALUE:
            self._start_value(char)
        if self._value is not None:
            self._value.append(text)
            if reader.depth == 1 and reader.state in _TOKEN_ENDS:
                self._end_value("".join(self._value), reader.state is JsonState.COLON)
        if self.is_complete and state is not JsonState.END:
            self._end()

    def take_arguments(self, *, has_last: bool) -> str:
        """Text of the arguments since the last call.

        Args:
            has_last: also the last brace; without it they can't be mistaken for an object.
        """
        if self._arguments is None:
            return ""
        end = len(self._arguments) - (self._is_closed and not has_last)
        new = "".join(self._arguments[self._num_emitted : end])
        self._num_emitted = end
        return new

    def _start_value(self, char: str) -> None:
        if self._key == "name":
            _check(char == '"', "the name isn't a string")
            self._value = []
        elif self._key == "arguments":
            _check(char in '"{', "the arguments aren't an object")
            self._value = []
            if char == "{":
                self._arguments = self._value

    def _end_value(self, text: str, is_key: bool) -> None:
        self._value = None
        if is_key:
            self._key = json.loads(text)
            _check(self._key not in self._keys, "a key is duplicated")
            self._keys.add(str(self._key))
        elif self._key == "name":
            name = json.loads(text)
            _check(bool(name) and _is_unicode(name), "the name isn't valid text")
            self.name = name
        else:
            if self._arguments is None:
                self._arguments = list(object_text(json.loads(text)))
            self._is_closed = True

    def _end(self) -> None:
        _check(self.name is not None, "the name is missing")
        if self._arguments is None:
            self._arguments, self._is_closed = ["{", "}"], True


def _check(is_valid: bool, problem: str) -> None:
    if not is_valid:
        raise JsonReadError(problem)


def _is_unicode(text: str) -> bool:
    # JSON escapes can encode half of a surrogate pair, UTF-8 can't.
    return not any("\ud800" <= char <= "\udfff" for char in text)
