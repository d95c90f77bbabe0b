"""What stands between the tags of a tool call: `{"name": ..., "arguments": {...}}`, as it arrives.

Arguments are told as the model wrote them, not parsed and written anew: only then can they be
told while they are generated. Control characters in strings are escaped, since JSON wants that.
"""

from __future__ import annotations

import json

from qwen3_a8w8.text.json_reader import JsonReader, JsonReadError, JsonState, object_text

_KEY_STATES = (JsonState.FIRST_KEY, JsonState.KEY)
_PIECE_ENDS = (JsonState.COLON, JsonState.AFTER_VALUE)


class CallReader:
    """Reads one call, character by character.

    Arguments may also come before the name, be an object written as a string, or be missing,
    which means `{}`. Other keys are ignored; a key that comes twice is a mistake.

    Attributes:
        name: of the function; None until it is known.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._json = JsonReader()
        self._key: str | None = None
        self._keys: set[str] = set()
        self._piece: list[str] | None = None  # the key, name or arguments that are being read
        self._arguments: list[str] | None = None
        self._is_closed = False
        self._num_taken = 0

    @property
    def is_whole(self) -> bool:
        """The object is closed; only white space may follow."""
        return self._json.state is JsonState.END

    @property
    def is_begun(self) -> bool:
        """There is a name, and of the arguments at least the opening brace."""
        return self.name is not None and self._arguments is not None

    def feed(self, char: str) -> None:
        """Takes the next character.

        Raises:
            JsonReadError: the text is no call.
        """
        reader = self._json
        depth, state = reader.depth, reader.state
        text = reader.feed(char)
        if depth == 1 and state in _KEY_STATES and reader.state is JsonState.STRING:
            self._piece = []
        elif depth == 1 and state is JsonState.VALUE and reader.state is not JsonState.VALUE:
            self._begin_value(char)
        if self._piece is not None:
            self._piece.append(text)
            if reader.depth == 1 and reader.state in _PIECE_ENDS:
                self._end_piece("".join(self._piece), reader.state is JsonState.COLON)
        if self.is_whole and state is not JsonState.END:
            self._end()

    def take_arguments(self, *, has_last: bool) -> str:
        """Text of the arguments since the last call.

        Args:
            has_last: also the last brace; without it they can't be taken for an object.
        """
        if self._arguments is None:
            return ""
        end = len(self._arguments) - (self._is_closed and not has_last)
        new = "".join(self._arguments[self._num_taken : end])
        self._num_taken = end
        return new

    def _begin_value(self, char: str) -> None:
        if self._key == "name":
            _check(char == '"', "the name is no string")
            self._piece = []
        elif self._key == "arguments":
            _check(char in '"{', "the arguments are no object")
            self._piece = []
            if char == "{":
                self._arguments = self._piece

    def _end_piece(self, text: str, is_key: bool) -> None:
        self._piece = None
        if is_key:
            self._key = json.loads(text)
            _check(self._key not in self._keys, "a key comes twice")
            self._keys.add(str(self._key))
        elif self._key == "name":
            name = json.loads(text)
            _check(bool(name) and _is_unicode(name), "the name is no text")
            self.name = name
        else:
            if self._arguments is None:
                self._arguments = list(object_text(json.loads(text)))
            self._is_closed = True

    def _end(self) -> None:
        _check(self.name is not None, "there is no name")
        if self._arguments is None:
            self._arguments, self._is_closed = ["{", "}"], True


def _check(is_right: bool, problem: str) -> None:
    if not is_right:
        raise JsonReadError(problem)


def _is_unicode(text: str) -> bool:
    # JSON's escapes can write halves of a surrogate pair, which UTF-8 can't.
    return not any("\ud800" <= char <= "\udfff" for char in text)
