"""Tools of the Responses API as functions of a chat request.

A custom tool takes free text. Qwen3 calls functions with a JSON object, so to the model it is a
function with one string, `input`, and the text is taken out of the call again. A format's grammar
is part of the description; it isn't enforced, since the text stands inside a JSON string.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.request import given

INPUT = "input"
"""Name of the one argument of a custom tool."""


def chat_tool(tool: dict[str, Any], place: int) -> dict[str, Any]:
    """A tool in the format of chat completions.

    Args:
        tool: as sent.
        place: its position, for errors.

    Returns:
        A function, or the tool itself where it is of a type that is left out.

    Raises:
        InvalidRequestError: its type, or the name of a custom tool, isn't a string.
    """
    kind = tool.get("type")
    if kind == "function":
        return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
    if not isinstance(kind, str) or not kind:
        path = f"tools[{place}].type"
        raise InvalidRequestError(f"{path} {given(tool, 'type')}; expected a string", param=path)
    if kind != "custom":
        return {"type": kind}
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        path = f"tools[{place}].name"
        raise InvalidRequestError(f"{path} {given(tool, 'name')}; expected a string", param=path)
    parameters = {
        "type": "object",
        "properties": {INPUT: {"type": "string", "description": "The whole input, as plain text."}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    function = {"name": name, "description": _description(tool), "parameters": parameters}
    return {"type": "function", "function": function}


def custom_names(tools: Sequence[dict[str, Any]]) -> frozenset[str]:
    """Names of the custom tools."""
    return frozenset(str(tool.get("name")) for tool in tools if tool.get("type") == "custom")


def call_arguments(text: str) -> str:
    """Arguments of the call of a custom tool with this input."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def input_so_far(arguments: str) -> str:
    """The input in the first part of a call's arguments; a character is never shown half."""
    try:
        value = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return ""
    text = value.get(INPUT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else ""


def whole_input(arguments: str) -> str:
    """The input of a whole call; arguments of another shape are passed on as they are."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return input_so_far(arguments)
    if isinstance(value, dict) and isinstance(value.get(INPUT), str):
        return str(value[INPUT])
    return arguments


def _description(tool: dict[str, Any]) -> str:
    parts = [str(tool.get("description") or "").strip()]
    form = tool.get("format")
    if isinstance(form, dict) and form.get("type") == "grammar":
        syntax = form.get("syntax")
        parts.append(f"The input follows this {syntax} grammar:\n{form.get('definition')}")
    # Descriptions may say that the text isn't to be wrapped in JSON, which is not how calls look.
    parts.append(f"Put the text, unchanged, into the argument `{INPUT}`.")
    return "\n\n".join(part for part in parts if part)
