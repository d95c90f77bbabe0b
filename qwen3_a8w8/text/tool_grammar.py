"""Tool calls as a grammar, for requests that have to answer with one.

What it allows is what `tool_calls.py` reads, in the very form of Qwen3's chat template, so that
the model is never made to write what it wasn't trained on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwen3_a8w8.text.structured import WHITESPACE
from qwen3_a8w8.text.tool_calls import CALL_CLOSE, CALL_OPEN

MAX_CALLS = 32
"""Most calls in one answer; a model may never stop making them."""


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A function that may be called.

    Attributes:
        name: of the function.
        parameters: JSON schema of the object of its arguments; None: it has none.
        is_strict: keywords of the schema that can't be enforced are refused, not ignored.
    """

    name: str
    parameters: Mapping[str, Any] | None
    is_strict: bool


def call_grammar(
    tools: Sequence[CallableTool],
    *,
    max_calls: int = MAX_CALLS,
    answer: tuple[Mapping[str, Any], bool] | None = None,
) -> str:
    """A grammar in Lark's notation for calls of the given tools.

    Args:
        tools: at least one.
        max_calls: most calls in one answer.
        answer: schema of a JSON answer that may come instead of calls, and whether keywords
            that can't be enforced are ignored.
    """
    more_calls = f' ("\\n" call){{0,{max_calls - 1}}}' if max_calls > 1 else ""
    rules = [
        f"start: {'calls' if answer is None else 'answer | calls'}",
        f"calls: call{more_calls}",
        f"call: {CALL_OPEN} {lark_text(chr(10))} function {lark_text('}' + chr(10))} {CALL_CLOSE}",
        "function: " + " | ".join(f"function_{i}" for i in range(len(tools))),
    ]
    for i, tool in enumerate(tools):
        begin = f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": '
        rules.append(f"function_{i}: {lark_text(begin)} arguments_{i}")
        rules.append(f"arguments_{i}: {_arguments(tool)}")
    if answer is not None:
        rules.append(f"answer: {_json(answer[0], is_lenient=answer[1])}")
    return "\n".join(rules) + "\n"


def _arguments(tool: CallableTool) -> str:
    parameters = tool.parameters or {}
    if _has_none(parameters):
        # As Qwen3's template writes it; a schema would allow white space within.
        return lark_text("{}")
    return _json({"type": "object", **parameters}, is_lenient=not tool.is_strict)


_OF_NO_ARGUMENTS = {
    *("type", "properties", "required", "additionalProperties"),
    *("$schema", "$id", "$comment", "title", "description", "examples", "default", "strict"),
}


def _has_none(parameters: Mapping[str, Any]) -> bool:
    """The function takes no arguments.

    By JSON schema an object without properties may have any; `properties: {}` is how clients
    declare a function without arguments all the same.
    """
    if not parameters:
        return True
    return (
        parameters.keys() <= _OF_NO_ARGUMENTS
        and not parameters.get("properties")
        and not parameters.get("required")
        and ("properties" in parameters or "additionalProperties" in parameters)
        and parameters.get("additionalProperties", False) is False
    )


def lark_text(value: object) -> str:
    """A JSON value as Lark's notation takes it: a string is a literal."""
    # llguidance's lexer refuses U+007F, which JSON needn't escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _json(schema: Mapping[str, Any], *, is_lenient: bool) -> str:
    options = {"whitespace_pattern": WHITESPACE, "lenient": is_lenient}
    return "%json " + lark_text({**schema, "x-guidance": options})
