"""Parses request bodies and reports what is invalid in one.

The only place that converts pydantic's errors to ours: in JSON's terms, with the field's path. A
value that matches no member of a union is reported once, with all expected types.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from qwen3_a8w8.errors import InvalidRequestError


class RequestModel(BaseModel):
    """Base of request bodies: strict types, `null` means not set, unknown fields are kept."""

    model_config = ConfigDict(strict=True, extra="allow")

    def unknown_fields(self) -> tuple[str, ...]:
        """Paths of fields in the request that aren't supported, sorted."""
        return tuple(sorted(_unknown_in(self, "")))

    @property
    def is_stream(self) -> bool:
        """Whether the response is streamed."""
        return False

    @property
    def skipped_tools(self) -> tuple[str, ...]:
        """Types of the tools in the request that this server doesn't run and leaves out."""
        return ()


class NestedModel(BaseModel):
    """Base of objects within request bodies whose unknown fields are reported."""

    model_config = ConfigDict(strict=True, extra="allow")


def _unknown_in(model: BaseModel, prefix: str) -> list[str]:
    found = [prefix + name for name in model.model_extra or ()]
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, NestedModel):
            found += _unknown_in(value, f"{prefix}{field.alias or name}.")
    return found


_Model = TypeVar("_Model", bound=BaseModel)


def parse_request(model: type[_Model], body: bytes | str) -> _Model:
    """Parses a request from a JSON body.

    Unlike Python's own parser this one accepts UTF-8 only, rejects lone surrogates, which
    tokenizers can't encode, and rejects nesting deeper than 200 levels, so that later code can
    recurse. Of duplicate keys the last one counts.

    Raises:
        InvalidRequestError: the body isn't a JSON object, or a field has a wrong type or value;
            `param` names the field.
    """
    try:
        data = body.encode() if isinstance(body, str) else body
        raw = from_json(data.removeprefix(codecs.BOM_UTF8))
    except ValueError as error:
        raise InvalidRequestError(
            f"the request body isn't valid JSON: {error}; send one JSON object"
        ) from error
    return validate_request(model, raw)


def validate_request(model: type[_Model], raw: object) -> _Model:
    """Validates a request in a parsed body.

    Raises:
        InvalidRequestError: as for `parse_request`.
    """
    if not isinstance(raw, dict):
        raise InvalidRequestError(f"the request body is {shown(raw)}; expected a JSON object")
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise request_error(error, raw) from None


OwnNames = Sequence[tuple[str, str]]
"""Patterns of path prefixes in a chat request, and their names in another API."""


@contextmanager
def own_names(names: OwnNames, sent: Container[str] = ()) -> Iterator[None]:
    """Within it, errors name the fields of another API, which was translated to chat completions.

    Args:
        names: the other API's.
        sent: fields that the client sent under their names in chat completions.

    Raises:
        InvalidRequestError: as it was raised, of the same class.
    """
    try:
        yield
    except InvalidRequestError as error:
        param, message = error.param or "", str(error)
        if re.split(r"\W", param)[0] not in sent:
            for pattern, own_name in names:
                if re.match(pattern, param):
                    error.param = re.sub(f"^{pattern}", own_name, param)
                    error.args = (re.sub(f"^{pattern}", own_name, message),)
                    break
        raise


_MAX_SHOWN_CHARS = 100


class FieldError(ValueError):
    """Raised in validators with a complete message and the field's name."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class PlaceError(ValueError):
    """Raised in validators that don't know the path of the value they validate.

    Args:
        place: path within that value, such as `[0].type`; empty for the value itself.
        problem: message text after the path, such as `is 5; expected a string`.
    """

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(problem)
        self.place = place


def request_error(error: ValidationError, raw: Mapping[str, Any]) -> InvalidRequestError:
    """The error that a client receives.

    Args:
        error: pydantic's.
        raw: the parsed body.
    """
    problems: list[Any] = error.errors(include_url=False)
    first = problems[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        return InvalidRequestError(str(cause), param=cause.param)
    param = _path(first, raw)
    if isinstance(cause, PlaceError):
        param += cause.place
        return InvalidRequestError(f"{param} {cause}", param=param)
    if first["type"] == "missing":
        return InvalidRequestError(f"{param} is missing; it is required", param=param)
    if first["type"].startswith("union_tag"):
        return _tag_error(first, param)
    if cause is not None:
        detail = str(cause)
    else:
        same = [problem for problem in problems if _path(problem, raw) == param]
        detail = "expected " + " or ".join(dict.fromkeys(map(_expected, same)))
    message = f"{param} is {shown(first['input'])}; {detail}"
    return InvalidRequestError(message, param=param or None)


def shown(value: object) -> str:
    """A value of a request for a message: as JSON if it is short, otherwise its type."""
    if isinstance(value, dict):
        return "an object" if value else "an empty object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, int) and value.bit_length() > 256:
        return "a very large integer"
    # The text may be as long as the body; only its start is written.
    if isinstance(value, str) and len(value) > _MAX_SHOWN_CHARS:
        return f"{json.dumps(value[:_MAX_SHOWN_CHARS], ensure_ascii=False)[:-1]}..."
    return json.dumps(value, default=repr, ensure_ascii=False)


def given(value: Mapping[str, Any], name: str) -> str:
    """Describes a field of an object for a message: `is 5`, or `is missing`."""
    return f"is {shown(value[name])}" if name in value else "is missing"


def _tag_error(problem: Any, param: str) -> InvalidRequestError:
    """Error for a list entry whose discriminator field is missing or unknown."""
    context = problem["ctx"]
    name = context["discriminator"].strip("'")
    param = f"{param}.{name}"
    if problem["type"] == "union_tag_not_found":
        return InvalidRequestError(f"{param} is missing; it is required", param=param)
    value = shown(problem["input"][name])
    expected = _choice(context["expected_tags"])
    return InvalidRequestError(f"{param} is {value}; expected {expected}", param=param)


def _choice(quoted: str) -> str:
    """Converts pydantic's list of literals to JSON quotes."""
    names = [name.strip().strip("'") for name in quoted.replace(" or ", ", ").split(",")]
    *others, last = (json.dumps(name) for name in names)
    return f"{', '.join(others)} or {last}" if others else last


def _at_least(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda context: f"at least {context['min_length']} {name}"


_EXPECTED: dict[str, Callable[[Mapping[str, Any]], str]] = {
    **dict.fromkeys(("string_type", "string_unicode"), lambda _: "a string"),
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing"), lambda _: "an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), lambda _: "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), lambda _: "true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), lambda _: "a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), lambda _: "an object"),
    "finite_number": lambda _: "a finite number",
    "none_required": lambda _: "null",
    "literal_error": lambda context: _choice(context["expected"]),
    "too_short": _at_least("entry"),
    "string_too_short": _at_least("character"),
    "greater_than_equal": lambda context: f">= {context['ge']}",
    "less_than_equal": lambda context: f"<= {context['le']}",
}


def _expected(problem: Any) -> str:
    describe = _EXPECTED.get(problem["type"])
    if describe is not None:
        return describe(problem.get("ctx", {}))
    text: str = problem["msg"]
    return text[:1].lower() + text[1:]


def _path(problem: Any, raw: object) -> str:
    """The path of the problem in the body.

    Pydantic's own path also names the union member that it tried, and the role that selected
    a message's model: steps that don't exist in the body.
    """
    location: Sequence[str | int] = problem["loc"]
    path, value = "", raw
    for place, step in enumerate(location):
        is_role = (
            place == 2
            and location[0] == "messages"
            and isinstance(value, dict)
            and value.get("role") == step
        )
        is_missing = problem["type"] == "missing" and place == len(location) - 1
        if isinstance(step, int):
            path += f"[{step}]"
            value = value[step] if isinstance(value, list) else None
        elif isinstance(value, dict) and not is_role and (step in value or is_missing):
            path += f".{step}" if path else step
            value = value.get(step)
    return path
