"""Error bodies in OpenAI's format, for HTTP responses and for error frames of streams.

`deployments/http/errors.py` maps exceptions to HTTP statuses.
"""

from __future__ import annotations

from typing import Any

from qwen3_a8w8.errors import (
    CapacityError,
    ContextLengthError,
    EngineDeadError,
    InvalidRequestError,
    Qwen3A8W8Error,
    RateLimitError,
    RequestFailedError,
    UnsupportedBatchSizeError,
)

_CODES: tuple[tuple[type[Exception], str], ...] = (
    (ContextLengthError, "context_length_exceeded"),
    (UnsupportedBatchSizeError, "unsupported_batch_size"),
    (CapacityError, "server_overloaded"),
    (EngineDeadError, "engine_dead"),
    (RequestFailedError, "request_failed"),
)


def error_body(error: BaseException, *, code: str | None = None) -> dict[str, Any]:
    """The error body that OpenAI's client libraries parse.

    An exception from outside this package's tree is a bug: its text may contain anything, so
    the client gets a fixed message.

    Args:
        error: what went wrong.
        code: overrides the exception's own code.

    Returns:
        `{"error": {"message", "type", "param", "code"}}`.
    """
    own_code = error.code if isinstance(error, InvalidRequestError) else None
    is_ours = isinstance(error, Qwen3A8W8Error)
    return {
        "error": {
            "message": str(error) if is_ours else "the server failed; see its log",
            "type": _error_type(error),
            "param": error.param if isinstance(error, InvalidRequestError) else None,
            "code": code or own_code or _default_code(error),
        }
    }


def _error_type(error: BaseException) -> str:
    if isinstance(error, InvalidRequestError):
        return "invalid_request_error"
    if isinstance(error, RateLimitError):
        return "rate_limit_error"
    return "overloaded_error" if isinstance(error, CapacityError) else "server_error"


def _default_code(error: BaseException) -> str | None:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return None if isinstance(error, Qwen3A8W8Error) else "internal_error"
