"""Builds a grammar of tool calls, for requests whose output must have a call.

It allows what `tool_calls.py` parses, in exactly the format of Qwen3's chat template, so that the
model is never forced to write what it wasn't trained on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwen3_a8w8.text.json_grammar import json_options, without_empty_keywords
from qwen3_a8w8.text.tool_calls import CALL_CLOSE, CALL_OPEN

MAX_CALLS = 32
"""Most calls in one output; a model may never stop making them."""


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A function that may be called.

    Attributes:
        name: of the function.
        parameters: JSON schema of its arguments object; None: it has no arguments.
        is_strict: schema keywords that can't be enforced are rejected, not ignored.
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
        max_calls: most calls in one output.
        answer: schema of a JSON answer that is allowed instead of calls, and whether keywords
            that can't be enforced are ignored.
    """
    more_calls = f' ("\\n" call){{0,{max_calls - 1}}}' if max_calls > 1 else ""
    rules = [
        f"start: {'calls' if answer is None else 'answer | calls'}",
        f"calls: call{more_calls}",
        *_call_rules(tools),
    ]
    if answer is not None:
        rules.append(f"answer: {_json(answer[0], is_lenient=answer[1])}")
    return "\n".join(rules) + "\n"


def _call_rules(tools: Sequence[CallableTool]) -> list[str]:
    rules = [
        f"call: {CALL_OPEN} {lark_text(chr(10))} function {lark_text('}' + chr(10))} {CALL_CLOSE}",
        "function: " + " | ".join(f"function_{i}" for i in range(len(tools))),
    ]
    for i, tool in enumerate(tools):
        prefix = f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": '
        rules.append(f"function_{i}: {lark_text(prefix)} arguments_{i}")
        rules.append(f"arguments_{i}: {_arguments(tool)}")
    return rules


def strict_call_grammar(tools: Sequence[CallableTool], *, max_calls: int = MAX_CALLS) -> str:
    """A grammar in Lark's notation for text in which calls of strict tools match their schemas.

    Text is free; what follows a call's opening tag is a call of one of the tools. The arguments of
    a tool that isn't strict are any object.

    Args:
        tools: at least one.
        max_calls: most calls in one output.
    """
    free = [
        tool if tool.is_strict else CallableTool(tool.name, {"type": "object"}, False)
        for tool in tools
    ]
    rules = [f"start: TEXT (call TEXT){{0,{max_calls}}}", "TEXT: /(.|\\n)*/", *_call_rules(free)]
    return "\n".join(rules) + "\n"


def _arguments(tool: CallableTool) -> str:
    parameters = tool.parameters or {}
    if _has_none(parameters):
        # As in Qwen3's template; a schema would allow white space inside.
        return lark_text("{}")
    return _json({"type": "object", **parameters}, is_lenient=not tool.is_strict)


_OF_NO_ARGUMENTS = {
    *("type", "properties", "required", "additionalProperties"),
    *("$schema", "$id", "$comment", "title", "description", "examples", "default", "strict"),
}


def _has_none(parameters: Mapping[str, Any]) -> bool:
    """Whether the function takes no arguments.

    In JSON Schema an object without declared properties may have any; clients nevertheless declare
    functions without arguments as `properties: {}`.
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
    """A JSON value in Lark's notation; a string becomes a literal."""
    # llguidance's lexer refuses U+007F, which JSON needn't escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _json(schema: Mapping[str, Any], *, is_lenient: bool) -> str:
    options = json_options(None, is_lenient=is_lenient)
    return "%json " + lark_text({**without_empty_keywords(schema), "x-guidance": options})
