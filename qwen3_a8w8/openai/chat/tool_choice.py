"""Which tools an answer may or must call, and the form that follows from it.

`required` and a named function are enforced by a grammar. With `auto` the model is free, unless
the answer has to be JSON: then it is that, or calls.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.request import FieldError, PlaceError, given, shown
from qwen3_a8w8.text.structured import StructuredOutput
from qwen3_a8w8.text.tool_grammar import MAX_CALLS, CallableTool, call_grammar


class ChosenFunction(BaseModel):
    """The function of a named choice."""

    model_config = ConfigDict(strict=True, extra="allow")

    name: str = Field(min_length=1)


class NamedToolChoice(BaseModel):
    """Exactly this function is to be called."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["function"]
    function: ChosenFunction


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice


def check_tool_choice(value: object) -> object:
    """Validator with a message of its own, as a union's would name its members.

    Raises:
        ValueError: it is no choice.
    """
    expected = (
        'expected "none", "auto", "required" or {"type": "function", "function": {"name": "..."}}'
    )
    if value in (None, "none", "auto", "required"):
        return value
    if not isinstance(value, dict):
        raise PlaceError("", f"is {shown(value)}; {expected}")
    if value.get("type") != "function":
        raise PlaceError(".type", f"{given(value, 'type')}; {expected}")
    function = value.get("function")
    if not isinstance(function, dict):
        raise PlaceError(".function", f"{given(value, 'function')}; {expected}")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise PlaceError(".function.name", f"{given(function, 'name')}; {expected}")
    return value


def check_names(names: Sequence[str]) -> None:
    """Checks that each tool of the request has a name of its own.

    Raises:
        FieldError: two have the same.
    """
    places: dict[str, int] = {}
    for place, name in enumerate(names):
        first = places.setdefault(name, place)
        if first != place:
            param = f"tools[{place}].function.name"
            raise FieldError(
                f"{param} is {shown(name)}, which is the name of tools[{first}] too; give each "
                "function a name of its own",
                param,
            )


def check_chosen(choice: ToolChoice | None, names: Sequence[str]) -> None:
    """Checks a choice against the tools of the request.

    Raises:
        FieldError: there are no tools, or none of the chosen name.
    """
    if choice in (None, "none", "auto"):
        return
    if not names:
        raise FieldError(
            "tool_choice asks for a call, but there are no tools; add tools or leave it out",
            "tool_choice",
        )
    if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
        raise FieldError(
            f"tool_choice names {choice.function.name!r}, the tools are {', '.join(names)}",
            "tool_choice",
        )


def structured_by_tools(
    choice: ToolChoice | None,
    tools: Sequence[CallableTool],
    answer: StructuredOutput | None,
    *,
    has_parallel_calls: bool,
) -> StructuredOutput | None:
    """The form of an answer to a request with tools.

    Args:
        choice: checked.
        tools: what the model is shown.
        answer: the form that the request's other fields ask for.
        has_parallel_calls: several calls may come in one answer.

    Raises:
        InvalidRequestError: a tool's schema isn't of an object, or they are too long or nested
            too deep.
    """
    max_calls = MAX_CALLS if has_parallel_calls else 1
    if isinstance(choice, NamedToolChoice):
        chosen = [tool for tool in tools if tool.name == choice.function.name]
        return _calls(chosen[:1], max_calls=1)
    if choice == "required":
        return _calls(tools, max_calls=max_calls)
    if not tools or answer is None:
        return answer
    schema = _answer_schema(answer)
    if schema is None:
        return answer  # no JSON: calls have no place in it
    return _calls(tools, max_calls=max_calls, answer=(schema, answer.is_lenient))


def _calls(
    tools: Sequence[CallableTool],
    *,
    max_calls: int,
    answer: tuple[dict[str, Any], bool] | None = None,
) -> StructuredOutput:
    for tool in tools:
        kind = (tool.parameters or {}).get("type", "object")
        if kind != "object":
            raise InvalidRequestError(
                f"the parameters of the tool {tool.name!r} have type {kind!r:.60}, expected "
                "'object', as arguments are",
                param="tools",
            )
    grammar = call_grammar(tools, max_calls=max_calls, answer=answer)
    return StructuredOutput(grammar=grammar, param="tools")


def _answer_schema(answer: StructuredOutput) -> dict[str, Any] | None:
    if answer.json_object:
        return {"type": "object"}
    schema = json.loads(answer.text) if answer.json is not None else None
    return schema if isinstance(schema, dict) else None
