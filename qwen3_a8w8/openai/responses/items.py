"""Converts items of the Responses API to chat messages.

An item is a message, a call, a call's output, or reasoning; the items of one assistant
turn (reasoning, text, calls) become one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.request import given, shown
from qwen3_a8w8.openai.responses.tools import call_arguments

Item = dict[str, Any]

_ROLES = ("system", "developer", "user")

_OF_HOSTED_TOOLS = (
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
    *("mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response"),
)
"""Traces of tools that another server ran; the model can't be shown them, and they are left out."""

_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def messages_of(
    items: Sequence[Item], instructions: str | None, *, num_earlier: int = 0
) -> list[dict[str, Any]]:
    """The conversation as chat messages.

    Args:
        items: in their order.
        instructions: inserted before them as a system message.
        num_earlier: number of items from earlier responses, before those of this input.

    Raises:
        InvalidRequestError: the type of an item isn't supported, or it lacks a field.
    """
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for place, item in enumerate(items):
        _add(messages, item, f"input[{place - num_earlier}]")
    return messages


def _add(messages: list[dict[str, Any]], item: Item, path: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        content = _text(item.get("content"), f"{path}.content")
        if item.get("role") == "assistant":
            turn = _assistant_turn(messages, has_content=True)
            turn["content"] = content
        else:
            role = _string(item, "role", path)
            if role not in _ROLES:
                raise InvalidRequestError(
                    f"{path}.role is {shown(role)}; expected {', '.join(_ROLES)} or assistant",
                    param=f"{path}.role",
                )
            messages.append({"role": role, "content": content})
    elif kind == "reasoning":
        parts = item.get("content") or item.get("summary") or []
        _assistant_turn(messages)["reasoning_content"] = _text(parts, f"{path}.content")
    elif kind in ("function_call", "custom_tool_call"):
        is_custom = kind == "custom_tool_call"
        call_id, name = _string(item, "call_id", path), _string(item, "name", path)
        arguments = _string(item, "input" if is_custom else "arguments", path)
        call = {
            "id": call_id,
            "type": "function",
            "function": {
                "name": name,
                "arguments": call_arguments(arguments) if is_custom else arguments,
            },
        }
        _assistant_turn(messages).setdefault("tool_calls", []).append(call)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        messages.append(
            {
                "role": "tool",
                "tool_call_id": _string(item, "call_id", path),
                "content": _text(item.get("output"), f"{path}.output"),
            }
        )
    elif kind not in _OF_HOSTED_TOOLS:
        raise InvalidRequestError(
            f"{path}.type is {shown(kind)}; expected message, reasoning, function_call, "
            "function_call_output, custom_tool_call or custom_tool_call_output",
            param=f"{path}.type",
        )


def _assistant_turn(messages: list[dict[str, Any]], *, has_content: bool = False) -> dict[str, Any]:
    """The assistant's last message if this item continues it, or a new one."""
    last = messages[-1] if messages else None
    is_open = last is not None and last["role"] == "assistant"
    if last is None or not is_open or (has_content and ("content" in last or "tool_calls" in last)):
        last = {"role": "assistant"}
        messages.append(last)
    return last


def _text(value: object, path: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidRequestError(
            f"{path} is {shown(value)}; expected a string or a list of parts", param=path
        )
    texts = []
    for place, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if kind else None
        if kind not in (*_TEXT_PARTS, "refusal") or not isinstance(text, str):
            detail = f" of type {shown(kind)}" if isinstance(part, dict) else ""
            raise InvalidRequestError(
                f"{path}[{place}] is {shown(part)}{detail}; the model accepts text only, expected "
                "a part with text",
                param=f"{path}[{place}]",
            )
        texts.append(text)
    return "\n".join(texts)


def _string(item: Item, name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or (not value and name == "name"):
        raise InvalidRequestError(
            f"{path}.{name} {given(item, name)}; expected a string", param=f"{path}.{name}"
        )
    return value
