"""The one table from exception to HTTP status, error type and code.

Knows how OpenAI's API names things; the shape of the body is `qwen3_a8w8.openai`'s
business. What isn't in the table is a defect: clients see 500 without details.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from qwen3_a8w8.errors import (
    CapacityError,
    EngineDeadError,
    InvalidRequestError,
    UnsupportedBatchSizeError,
)


class ModelNotFoundError(InvalidRequestError):
    """The request names a model that isn't served here."""


class BodyTooLargeError(InvalidRequestError):
    """The request body is longer than `http.max_body_bytes`."""


class RouteError(InvalidRequestError):
    """There is no such route, or not with that method.

    Attributes:
        status: 404 or 405.
    """

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message, code=code)
        self.status = status


@dataclass(frozen=True, slots=True)
class HttpError:
    """What a client is told.

    Attributes:
        status: HTTP status.
        type: OpenAI's error type.
        code: short machine-readable reason, or None.
        message: for people.
        param: the offending request field, or None.
        headers: extra response headers.
    """

    status: int
    type: str
    code: str | None
    message: str
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


_INVALID = "invalid_request_error"
_SERVER = "server_error"

# First match wins, so children come before their parents.
_TABLE: tuple[tuple[type[Exception], int, str, str | None], ...] = (
    (ModelNotFoundError, 404, _INVALID, "model_not_found"),
    (BodyTooLargeError, 413, _INVALID, "request_too_large"),
    (UnsupportedBatchSizeError, 400, _INVALID, "unsupported_batch_size"),
    (InvalidRequestError, 400, _INVALID, None),
    (CapacityError, 503, _SERVER, "server_overloaded"),
    (EngineDeadError, 503, _SERVER, "engine_unavailable"),
)


def to_http_error(error: Exception) -> HttpError:
    """Status and body fields for an exception."""
    if isinstance(error, RouteError):
        return HttpError(error.status, _INVALID, error.code, str(error))
    for kind, status, type_, code in _TABLE:
        if isinstance(error, kind):
            own_code = getattr(error, "code", None)
            headers = {}
            if isinstance(error, CapacityError):
                headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
            return HttpError(
                status,
                type_,
                own_code or code,
                str(error),
                getattr(error, "param", None),
                headers,
            )
    return HttpError(
        500,
        _SERVER,
        "internal_error",
        "an internal error ended the request; the server's log has the details",
    )
