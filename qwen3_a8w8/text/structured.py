"""The structured output that a request asks for, validated as far as possible without a tokenizer.

Names and meanings of the kinds are vLLM's. `grammar_compiler.py` finds out whether a grammar can
be compiled; `grammar_state.py` masks the tokens that it allows.
"""

from __future__ import annotations

import json as json_text
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, NoReturn

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.text.nesting import depth_of, grammar_nesting, regex_nesting

MAX_GRAMMAR_CHARS = 2**18
"""Longest schema, expression or grammar, and all choices together."""

MAX_CHOICES = 1024

MAX_NESTING = 100
"""Deepest schema, and most open brackets in a grammar: compilers recurse over them."""

WHITESPACE = r"\x20"
"""White space between JSON tokens: at most one space. Room for more costs a model its tokens."""

MAX_WHITESPACE_CHARS = 256
"""Longest `whitespace_pattern`."""


class Thinking(Enum):
    """Where in an output the grammar applies from."""

    NONE = "none"
    """From the first token."""
    OPTIONAL = "optional"
    """From the first token, or after a think block at the start of the output."""
    OPEN = "open"
    """After the think block that the prompt has opened."""


_KINDS = ("json", "json_object", "regex", "choice", "grammar")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutput:
    """Structured output: exactly one of json, json_object, regex, choice and grammar.

    Attributes:
        json: a JSON schema, as an object, as true (any JSON value) or as JSON text; stored as text.
        json_object: any JSON object.
        regex: a regular expression (of Rust's `regex` crate) that the whole output matches.
        choice: the output is one of these strings; 1 to 1024.
        grammar: a context-free grammar, in Lark's notation or GBNF.
        is_lenient: schema keywords that can't be enforced are ignored; otherwise they are
            rejected.
        whitespace_pattern: regular expression of the white space allowed between JSON tokens, of
            json and json_object; "": none; None: at most one space.
        tools: names of the tools whose arguments are the rules `arguments_0`, `arguments_1` ... of
            the grammar (`tool_grammar.py`); errors name them.
        thinking: where the grammar applies from.
        param: the request field that errors name.
    """

    json: str | bool | Mapping[str, Any] | None = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    is_lenient: bool = False
    whitespace_pattern: str | None = None
    tools: tuple[str, ...] = ()
    thinking: Thinking = Thinking.NONE
    param: str = "structured"

    def __post_init__(self) -> None:
        """Checks and normalises the fields.

        Raises:
            InvalidRequestError: none or several kinds are set, or one has a wrong type, is empty,
                too long or nested too deep; `param` names the field.
        """
        object.__setattr__(self, "thinking", Thinking(self.thinking))
        raw: Any = {name: getattr(self, name) for name in _KINDS}
        if raw["json_object"] is False:
            del raw["json_object"]
        given = [name for name, value in raw.items() if value is not None]
        if len(given) != 1:
            self._fail(
                f"sets {' and '.join(given) if given else 'nothing'}, expected exactly one of "
                f"{', '.join(_KINDS)}"
            )
        kind = given[0]
        value = raw[kind]
        if kind == "json_object":
            if value is not True:
                self._fail(f"has json_object {value!r:.60}, expected true")
        elif kind == "choice":
            self._check_choice(value)
        elif kind == "json" and isinstance(value, Mapping | bool):
            object.__setattr__(self, "json", self._as_text(value))
        elif not isinstance(value, str) or not value:
            self._fail(f"has {kind} {value!r:.60}, expected a non-empty string")
        object.__setattr__(self, "tools", tuple(self.tools))
        self._check_whitespace()
        self._check_size()
        if self.json is not None:
            self._check_json()

    @classmethod
    def from_fields(
        cls, given: Mapping[str, Any], *, param: str = "structured"
    ) -> StructuredOutput:
        """Builds it from a mapping of the attributes, as Python callers may pass.

        Raises:
            InvalidRequestError: as the constructor; or a key is unknown.
        """
        known = [field.name for field in fields(cls) if field.name != "param"]
        for name in given:
            if name not in known:
                raise InvalidRequestError(
                    f"{param} has the unknown key {name!r}; valid keys: {', '.join(known)}",
                    param=param,
                )
        try:
            return cls(**{"param": param, **given})
        except ValueError as error:  # of Thinking
            raise InvalidRequestError(f"{param}: {error}", param=param) from error

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal grammars."""
        return (
            *(getattr(self, name) for name in _KINDS),
            self.is_lenient,
            self.whitespace_pattern,
        )

    @property
    def text(self) -> str:
        """The schema, expression or grammar; "" for the other kinds."""
        for value in (self.json, self.regex, self.grammar):
            if isinstance(value, str):
                return value
        return ""

    def _as_text(self, value: object) -> str:
        try:
            return json_text.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            self._fail(f"has a json schema that isn't a JSON value: {error}")

    def _check_choice(self, value: object) -> None:
        if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_CHOICES:
            self._fail(f"has choice {value!r:.60}, expected a list of 1 to {MAX_CHOICES} strings")
        entries: Any = value
        for position, entry in enumerate(entries):
            if not isinstance(entry, str) or not entry:
                self._fail(f"has {entry!r:.60} as choice {position}, expected a non-empty string")
        object.__setattr__(self, "choice", tuple(entries))

    def _check_whitespace(self) -> None:
        pattern = self.whitespace_pattern
        if pattern is None:
            return
        if not isinstance(pattern, str) or len(pattern) > MAX_WHITESPACE_CHARS:
            self._fail(
                f"has whitespace_pattern {pattern!r:.60}, expected a regular expression of at most "
                f"{MAX_WHITESPACE_CHARS} characters"
            )
        if self.json is None and not self.json_object:
            self._fail("has a whitespace_pattern, which applies to json only; remove it")

    def _check_json(self) -> None:
        try:
            schema = json_text.loads(self.text)
        except ValueError as error:
            self._fail(f"has a json schema that isn't valid JSON: {error}")
        except RecursionError:
            self._fail(f"is nested more than {MAX_NESTING} brackets deep; make it flatter")
        if not isinstance(schema, dict | bool):
            self._fail(f"has a json schema that is {self.text[:60]}, expected an object")
        if schema is False:
            self._fail("has the json schema false, which matches no output; set a schema, or true")
        if schema is True:
            object.__setattr__(self, "json", "{}")
        self._check_nesting(depth_of(schema))

    def _check_size(self) -> None:
        size = sum(map(len, self.choice or (self.text,)))
        if size > MAX_GRAMMAR_CHARS:
            self._fail(f"has {size} characters, the limit is {MAX_GRAMMAR_CHARS}; make it shorter")
        if self.regex is not None:
            self._check_nesting(regex_nesting(self.regex))
        if self.grammar is not None:
            self._check_nesting(grammar_nesting(self.grammar))

    def _check_nesting(self, depth: int) -> None:
        if depth > MAX_NESTING:
            self._fail(
                f"is nested {depth} brackets deep, the limit is {MAX_NESTING}; make it flatter"
            )

    def _fail(self, message: str) -> NoReturn:
        raise InvalidRequestError(f"{self.param} {message}", param=self.param)
