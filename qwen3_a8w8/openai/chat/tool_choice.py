"""Which tools an output may or must call, and the grammar for it.

A grammar enforces `required` and a named function. With `auto` the output is unconstrained but for
two cases: if JSON is requested, it is either that JSON or calls; if a tool is strict, what follows
a call's opening tag is a call that matches its schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.request import FieldError, PlaceError, given, shown
from qwen3_a8w8.text.structured import StructuredOutput
from qwen3_a8w8.text.tool_grammar import MAX_CALLS, CallableTool, call_grammar, strict_call_grammar


class ChosenFunction(BaseModel):
    """The function of a named choice."""

    model_config = ConfigDict(strict=True, extra="allow")

    name: str = Field(min_length=1)


class NamedToolChoice(BaseModel):
    """The function that must be called."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["function"]
    function: ChosenFunction


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice


def check_tool_choice(value: object) -> object:
    """Validates a choice; a union's own message would name its Python types.

    Raises:
        ValueError: it isn't a valid choice.
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


def check_names(names: Mapping[int, str]) -> None:
    """Checks that the tools of the request have distinct names.

    Args:
        names: of the functions, by their position among the tools.

    Raises:
        FieldError: two tools have the same name.
    """
    places: dict[str, int] = {}
    for place, name in names.items():
        first = places.setdefault(name, place)
        if first != place:
            param = f"tools[{place}].function.name"
            raise FieldError(
                f"{param} is {shown(name)}, which is the name of tools[{first}] too; use a "
                "different name for each function",
                param,
            )


def check_chosen(
    choice: ToolChoice | None, names: Sequence[str], skipped: Sequence[str] = ()
) -> None:
    """Checks a choice against the tools of the request.

    Args:
        choice: the validated choice.
        names: of the functions.
        skipped: types of the tools that are left out.

    Raises:
        FieldError: there are no tools, or none with the chosen name.
    """
    if choice in (None, "none", "auto"):
        return
    if not names and skipped:
        raise FieldError(
            "tool_choice requires a call, but the tools are of types that this server doesn't run "
            f"({', '.join(skipped)[:200]}); add functions or remove tool_choice",
            "tool_choice",
        )
    if not names:
        raise FieldError(
            "tool_choice requires a call, but there are no tools; add tools or remove tool_choice",
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
    """The structured output of a request with tools.

    Args:
        choice: the validated tool choice.
        tools: tools in the prompt.
        answer: structured output requested by the other fields.
        has_parallel_calls: one output may have several calls.

    Raises:
        InvalidRequestError: a tool's schema isn't of type object, or they are too long or nested
            too deeply.
    """
    max_calls = MAX_CALLS if has_parallel_calls else 1
    if isinstance(choice, NamedToolChoice):
        chosen = [tool for tool in tools if tool.name == choice.function.name]
        return _calls(chosen[:1], max_calls=1)
    if choice == "required":
        return _calls(tools, max_calls=max_calls)
    if answer is None and any(tool.is_strict for tool in tools):
        return _structured(tools, strict_call_grammar(tools, max_calls=max_calls))
    if not tools or answer is None:
        return answer
    schema = _answer_schema(answer)
    if schema is None:
        return answer  # not JSON: the grammar has no calls
    return _calls(tools, max_calls=max_calls, answer=(schema, answer.is_lenient))


def _calls(
    tools: Sequence[CallableTool],
    *,
    max_calls: int,
    answer: tuple[dict[str, Any], bool] | None = None,
) -> StructuredOutput:
    return _structured(tools, call_grammar(tools, max_calls=max_calls, answer=answer))


def _structured(tools: Sequence[CallableTool], grammar: str) -> StructuredOutput:
    for tool in tools:
        kind = (tool.parameters or {}).get("type", "object")
        if kind != "object":
            raise InvalidRequestError(
                f"the parameters of the tool {tool.name!r} have type {kind!r:.60}, expected "
                "'object'",
                param="tools",
            )
    names = tuple(tool.name for tool in tools)
    return StructuredOutput(grammar=grammar, tools=names, param="tools")


def _answer_schema(answer: StructuredOutput) -> dict[str, Any] | None:
    if answer.json_object:
        return {"type": "object"}
    schema = json.loads(answer.text) if answer.json is not None else None
    return schema if isinstance(schema, dict) else None
