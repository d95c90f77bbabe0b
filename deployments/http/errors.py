"""The table from exception to HTTP status.

`qwen3_a8w8.openai.errors` builds the body and has the codes that exceptions have everywhere; those
that exist over HTTP only are here. An exception that isn't in the table is a bug:
clients get a 500 without details.
"""

from __future__ import annotations

import math
from typing import Any

from fastapi.responses import JSONResponse

from qwen3_a8w8.anthropic.errors import message_error
from qwen3_a8w8.errors import (
    CapacityError,
    EngineDeadError,
    InvalidRequestError,
    ModelNotFoundError,
    RateLimitError,
    RequestFailedError,
)
from qwen3_a8w8.openai.errors import error_body

MESSAGES_PATH = "/v1/messages"
OLLAMA_PATH = "/api/"
"""Paths of other APIs than OpenAI's, whose errors have other formats."""


def is_messages_path(path: str) -> bool:
    """Whether a path is one of Anthropic's API, with or without `/v1`."""
    return path.removeprefix("/v1").split("/")[1:2] == ["messages"]


class ResponseNotFoundError(InvalidRequestError):
    """The request names a response that isn't stored, or no longer."""


class BodyTooLargeError(InvalidRequestError):
    """The request body is longer than `http.max_body_bytes`."""


class HeadersTooLargeError(InvalidRequestError):
    """Path and headers are longer than `http.max_header_bytes`."""


class MediaTypeError(InvalidRequestError):
    """The content type of the request isn't JSON."""


class AuthenticationError(InvalidRequestError):
    """The request has no valid API key."""


class CorsError(InvalidRequestError):
    """The origin of a browser's request isn't allowed."""


class RouteError(InvalidRequestError):
    """There is no such route, or it doesn't allow the method.

    Attributes:
        status: 404 or 405.
    """

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message, code=code)
        self.status = status


# The first match counts, so subclasses come before their bases. None: the exception's own code.
_TABLE: tuple[tuple[type[Exception], int, str | None], ...] = (
    (ModelNotFoundError, 404, "model_not_found"),
    (ResponseNotFoundError, 404, None),
    (BodyTooLargeError, 413, "request_too_large"),
    (HeadersTooLargeError, 431, "headers_too_large"),
    (MediaTypeError, 415, "unsupported_media_type"),
    (AuthenticationError, 401, "invalid_api_key"),
    (CorsError, 400, "cors_not_allowed"),
    (InvalidRequestError, 400, None),
    (RateLimitError, 429, "rate_limit_exceeded"),
    (CapacityError, 503, None),
    (EngineDeadError, 503, None),
    (RequestFailedError, 500, None),
)


def status_and_code(error: Exception) -> tuple[int, str | None]:
    """HTTP status and code of an exception; None: the code that the body gives it."""
    if isinstance(error, RouteError):
        return error.status, error.code
    for kind, status, code in _TABLE:
        if isinstance(error, kind):
            return status, code
    return 500, None


def error_response(error: Exception, path: str = "") -> JSONResponse:
    """The response to a request that failed before any of its response was sent.

    Args:
        error: why.
        path: of the request; APIs have their own formats.
    """
    status, code = status_and_code(error)
    headers = {}
    if isinstance(error, CapacityError):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    elif status == 503:
        headers["Retry-After"] = "1"  # an engine is being replaced: how long isn't known
    if isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(_body(error, path, status, code), status_code=status, headers=headers)


def _body(error: Exception, path: str, status: int, code: str | None) -> dict[str, Any]:
    if is_messages_path(path):
        return message_error(error, status)
    body = error_body(error, code=code)
    return {"error": body["error"]["message"]} if path.startswith(OLLAMA_PATH) else body
