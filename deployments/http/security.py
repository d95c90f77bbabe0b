"""Security middleware (ASGI): CORS, sizes, media type and API keys.

Each part sends its own error response, in OpenAI's format; all but `RequestGuard`, which limits
the body while it is read, do so before any of the body is read.
Doesn't know about Ray or the model. `add_security` adds the parts in their order.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.http.api_keys import ApiKeys, KeyLimits
from deployments.http.engine_routes import STATE_PATH
from deployments.http.errors import (
    OLLAMA_PATH,
    AuthenticationError,
    BodyTooLargeError,
    CorsError,
    HeadersTooLargeError,
    MediaTypeError,
    error_response,
    is_messages_path,
)
from deployments.http.page_routes import PAGE_PATHS
from deployments.http.streaming import log_failure
from deployments.settings import HttpSettings, SecuritySettings
from qwen3_a8w8.errors import ConfigError, Qwen3A8W8Error

OPEN_PATHS = frozenset({"/health", "/ready"})
"""Paths for load balancers; they only report whether the server is ready."""

UNCOUNTED_PATHS = frozenset({STATE_PATH})
"""Paths that need a key but don't count in its limits: an open page asks once a second."""

CORS_METHODS = ("GET", "POST", "DELETE")


def add_security(app: FastAPI, security: SecuritySettings, http: HttpSettings) -> None:
    """Adds the middleware to `app`, which must not have served a request yet.

    Args:
        app: the routes.
        security: keys, their limits, CORS.
        http: sizes.

    Raises:
        ConfigError: the keys can't be read, or limits per key are set without keys.
    """
    keys = ApiKeys.from_settings(security)
    # The middleware added last runs first.
    if keys is not None:
        limits = KeyLimits(
            security.max_concurrent_requests_per_key, security.max_requests_per_minute_per_key
        )
        open_paths = OPEN_PATHS | PAGE_PATHS if http.page else OPEN_PATHS
        app.add_middleware(ApiKeyCheck, keys=keys, limits=limits, open_paths=open_paths)
    elif security.has_key_limits:
        raise ConfigError(
            "security limits the requests per API key, but there are no keys; set "
            "security.api_key_file, or remove the limits"
        )
    app.add_middleware(
        SizeCheck, max_header_bytes=http.max_header_bytes, max_body_bytes=http.max_body_bytes
    )
    if security.cors_allow_origins:
        app.add_middleware(
            Cors,
            allow_origins=security.cors_allow_origins,
            allow_methods=CORS_METHODS,
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )


class ApiKeyCheck:
    """Lets requests with a valid key pass, within the limits of the key."""

    def __init__(
        self, app: ASGIApp, *, keys: ApiKeys, limits: KeyLimits, open_paths: frozenset[str]
    ) -> None:
        self._app = app
        self._keys = keys
        self._limits = limits
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards the request, or responds with 401 or 429."""
        path = "" if scope["type"] == "lifespan" else _route_path(scope)
        if scope["type"] == "lifespan" or path in self._open_paths:
            await self._app(scope, receive, send)
            return
        is_counted = path not in UNCOUNTED_PATHS
        try:
            key = self._identify(Headers(scope=scope), path)
            if is_counted:
                self._limits.start(key)
        except Qwen3A8W8Error as error:
            await error_response(error, _route_path(scope))(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if is_counted:
                self._limits.end(key)

    def _identify(self, headers: Headers, path: str) -> int:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            # Anthropic's clients send the key in a header of its own.
            key = headers.get("x-api-key", "") if is_messages_path(path) else ""
        number = self._keys.identify(key.strip().encode("latin-1")) if key else None
        if number is None:
            raise AuthenticationError(
                "the API key is missing or wrong; send a valid one as 'Authorization: Bearer KEY'"
            )
        return number


class SizeCheck:
    """Rejects long headers, bodies with a large Content-Length, and other types than JSON.

    `RequestGuard` rejects a body that exceeds the limit while it is read.
    """

    def __init__(self, app: ASGIApp, *, max_header_bytes: int, max_body_bytes: int) -> None:
        self._app = app
        self._max_header_bytes = max_header_bytes
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards the request, or responds with 413, 415 or 431."""
        if scope["type"] == "http":
            try:
                self._check_headers(scope)
                self._check_body(Headers(scope=scope), _route_path(scope))
            except Qwen3A8W8Error as error:
                await error_response(error, _route_path(scope))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check_headers(self, scope: Scope) -> None:
        num_bytes = len(scope["path"]) + len(scope["query_string"])
        num_bytes += sum(len(name) + len(value) for name, value in scope["headers"])
        if num_bytes > self._max_header_bytes:
            raise HeadersTooLargeError(
                f"path and headers have {num_bytes} bytes, the limit http.max_header_bytes is "
                f"{self._max_header_bytes}; shorten them or raise the limit"
            )

    def _check_body(self, headers: Headers, path: str) -> None:
        length = headers.get("content-length", "0")
        if length.isdecimal() and (len(length) > 18 or int(length) > self._max_body_bytes):
            raise BodyTooLargeError(
                f"the request body has {length:.40} bytes, the limit http.max_body_bytes is "
                f"{self._max_body_bytes}; shorten it or raise the limit"
            )
        has_body = length != "0" or "transfer-encoding" in headers
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        # A browser lets a page send types other than JSON to other sites without a preflight; it
        # always sets Origin. Programs that send no type at all are served; on Ollama's paths also
        # those that send another one, as `curl -d` does in all of its examples.
        is_program = "origin" not in headers
        is_lenient = not media_type or path.startswith(OLLAMA_PATH)
        if has_body and not (media_type == "application/json" or (is_program and is_lenient)):
            raise MediaTypeError(
                f"the request body has the content type {media_type[:80]!r}; send JSON with "
                "'Content-Type: application/json'"
            )


class RequestGuard:
    """ASGI middleware: limits the body and returns every exception in OpenAI's format."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        num_bytes = 0
        has_started = False

        async def bounded_receive() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_body_bytes:
                raise BodyTooLargeError(
                    f"the request body has more than {self._max_body_bytes} bytes, the limit "
                    "http.max_body_bytes; shorten it or raise the limit"
                )
            return message

        async def watched_send(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, bounded_receive, watched_send)
        except Exception as error:
            log_failure(error)
            if has_started:
                raise
            await error_response(error, _route_path(scope))(scope, receive, send)


class Cors(CORSMiddleware):
    """Starlette's CORS middleware with errors in OpenAI's format."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Responds to a browser's preflight request."""
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        refusal = error_response(
            CorsError(f"{bytes(response.body).decode()}; see security.cors_allow_origins")
        )
        for name, value in response.headers.items():
            if name not in ("content-length", "content-type"):
                refusal.headers[name] = value
        return refusal


def _route_path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
