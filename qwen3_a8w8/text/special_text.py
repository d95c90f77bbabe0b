"""Finds the text of special tokens, such as `<|im_end|>` or `</tool_call>`, in grammars.

No output can contain such a text: its parsers, and llguidance where the text is forced, treat
it as the token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from qwen3_a8w8.text.structured import StructuredOutput

_LARK_STRING = r'"(?:\\.|[^"\\\n])*"?'
_LARK_PART = re.compile(
    rf"{_LARK_STRING}|//[^\n]*|/(?:\\.|[^/\\\n])*/?|(?P<json>%json\s+)", re.DOTALL
)
_VALUES = ("const", "enum", "required")


def special_text(structured: StructuredOutput, specials: Sequence[str]) -> str | None:
    """The text of a special token in a literal of the grammar, or None.

    Literals are choices, strings of a grammar, and `const`, `enum` and property names of a
    schema.
    """
    if not specials:
        return None
    known = re.compile("|".join(map(re.escape, sorted(specials, key=len, reverse=True))))
    for literal in _literals(structured):
        found = known.search(literal)
        if found is not None:
            return found[0]
    return None


def refusal(special: str) -> str:
    """Error message for a grammar with the text of a special token."""
    return (
        f"it requires the text {special!r}, which is a special token of the model and can't be "
        "generated as text; remove it"
    )


def _literals(structured: StructuredOutput) -> Iterable[str]:
    if structured.choice is not None:
        return structured.choice
    if structured.json is not None:
        return _of_schema(json.loads(structured.text))
    return _of_lark(structured.grammar or "")


def _of_schema(schema: object) -> Iterator[str]:
    if isinstance(schema, list):
        for entry in schema:
            yield from _of_schema(entry)
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name in _VALUES:
                yield json.dumps(value, ensure_ascii=False)
            elif name == "properties" and isinstance(value, dict):
                yield from value
                yield from _of_schema(list(value.values()))
            else:
                yield from _of_schema(value)


def _of_lark(grammar: str) -> Iterator[str]:
    position = 0
    while (found := _LARK_PART.search(grammar, position)) is not None:
        position = found.end()
        if found["json"] is not None:
            try:
                schema, position = json.JSONDecoder().raw_decode(grammar, position)
            except ValueError:
                continue  # the compiler reports what is wrong
            yield from _of_schema(schema)
        elif found[0].startswith('"'):
            yield found[0]
