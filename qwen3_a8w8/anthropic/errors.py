"""Errors in Anthropic's format."""

from __future__ import annotations

from typing import Any

from qwen3_a8w8.errors import (
    CapacityError,
    EngineDeadError,
    InvalidRequestError,
    ModelNotFoundError,
    RateLimitError,
)
from qwen3_a8w8.openai.errors import error_body

_TYPES: tuple[tuple[type[Exception], str], ...] = (
    (ModelNotFoundError, "not_found_error"),
    (InvalidRequestError, "invalid_request_error"),
    (RateLimitError, "rate_limit_error"),
    (CapacityError, "overloaded_error"),
    (EngineDeadError, "overloaded_error"),
)

_TYPES_BY_STATUS = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def message_error(error: BaseException, status: int | None = None) -> dict[str, Any]:
    """The error body that Anthropic's client libraries parse.

    Args:
        error: what went wrong.
        status: of the response; None: the error is an event of a stream.
    """
    kinds = (name for kind, name in _TYPES if isinstance(error, kind))
    kind = _TYPES_BY_STATUS.get(status or 0) or next(kinds, "api_error")
    message = error_body(error)["error"]["message"]
    return {"type": "error", "error": {"type": kind, "message": message}}
