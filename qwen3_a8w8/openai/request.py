"""Parsing a request body; `field_errors.py` tells what is wrong with one."""

from __future__ import annotations

import codecs
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.field_errors import request_error, shown


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
        raise InvalidRequestError(f"the request body is {shown(raw)}; expected a JSON object")
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise request_error(error, raw) from None
