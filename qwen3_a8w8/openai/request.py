"""Parsing a request body, and the one place where pydantic's errors become ours."""

from __future__ import annotations

import codecs
import reprlib
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from qwen3_a8w8.errors import InvalidRequestError


class RequestModel(BaseModel):
    """Base of request bodies: strict types, `null` means not given, unknown fields are kept."""

    model_config = ConfigDict(strict=True, extra="allow")

    def unknown_fields(self) -> tuple[str, ...]:
        """Names of top-level fields that were sent but mean nothing here, sorted."""
        return tuple(sorted(self.model_extra or ()))


_Model = TypeVar("_Model", bound=BaseModel)


def parse_request(model: type[_Model], body: bytes | str) -> _Model:
    """The request in a JSON body.

    Unlike Python's own parser this one takes UTF-8 only, refuses lone surrogates, which no
    tokenizer takes, and objects nested deeper than 200 levels, which nothing after it has to
    fear then. Of equal keys the last one counts.

    Raises:
        InvalidRequestError: the body is no JSON object, or a field has a wrong type or value;
            `param` names the field.
    """
    try:
        data = body.encode() if isinstance(body, str) else body
        raw = from_json(data.removeprefix(codecs.BOM_UTF8))
    except ValueError as error:
        raise InvalidRequestError(
            f"the request body is no valid JSON: {error}; send one JSON object"
        ) from error
    return validate_request(model, raw)


def validate_request(model: type[_Model], raw: object) -> _Model:
    """The request in an already parsed body.

    Raises:
        InvalidRequestError: as for `parse_request`.
    """
    if not isinstance(raw, dict):
        raise InvalidRequestError(
            f"the request body is a JSON {type(raw).__name__}, expected an object"
        )
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise _request_error(error) from None


def _request_error(error: ValidationError) -> InvalidRequestError:
    details: Any = error.errors(include_url=False)[0]
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        return InvalidRequestError(str(cause), param=cause.param)
    param = _path(details["loc"])
    if details["type"] == "missing":
        return InvalidRequestError(f"{param} is missing; it is required", param=param)
    message = str(cause) if cause is not None else _lower_first(details["msg"])
    return InvalidRequestError(
        f"{param} is {_shorten(details['input'])}: {message}", param=param or None
    )


class FieldError(ValueError):
    """Raised in validators with a complete message and the field's name."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def _path(location: Sequence[str | int]) -> str:
    path = ""
    after_message = False
    for step in location:
        if isinstance(step, int):
            after_message = path == "messages"
            path += f"[{step}]"
        elif after_message:
            # pydantic names the role that chose the message's model; it is no part of the path.
            after_message = False
        else:
            path += f".{step}" if path else step
    return path


def _shorten(value: object) -> str:
    # The value may be as long as the body; only its beginning is ever written out.
    text = _SHORT.repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 100


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
