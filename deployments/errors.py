"""Exceptions that only a deployment has: between its processes, and of its HTTP face.

What clients see of them is decided in `http_errors.py`.
"""

from __future__ import annotations

from qwen3_a8w8.errors import EngineDeadError, InvalidRequestError


class EngineNotReadyError(EngineDeadError):
    """The replica refused a request before anything was begun; another one may take it."""


class ModelNotFoundError(InvalidRequestError):
    """The request names a model that isn't served here."""


class ResponseNotFoundError(InvalidRequestError):
    """The request names a response that isn't kept here, or no longer."""


class BodyTooLargeError(InvalidRequestError):
    """The request body is longer than `http.max_body_bytes`."""


class HeadersTooLargeError(InvalidRequestError):
    """Path and headers are longer than `http.max_header_bytes`."""


class MediaTypeError(InvalidRequestError):
    """The request body isn't said to be JSON."""


class AuthenticationError(InvalidRequestError):
    """The request has no valid API key."""


class CorsError(InvalidRequestError):
    """A page in a browser may not send its requests here."""


class RouteError(InvalidRequestError):
    """There is no such route, or not with that method.

    Attributes:
        status: 404 or 405.
    """

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message, code=code)
        self.status = status
