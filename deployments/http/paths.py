"""Spellings of requests that clients expect besides the routes: HEAD, and paths without `/v1`."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

WITHOUT_VERSION = ("chat", "completions", "models", "responses", "messages", "batch_generate")
"""First parts of paths that are served below `/v1` and at the root."""


class PathSpellings:
    """ASGI middleware: answers HEAD like GET without the body, and adds a missing `/v1`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        root = scope.get("root_path", "")
        path: str = scope["path"].removeprefix(root)
        if path[1:].partition("/")[0] in WITHOUT_VERSION:
            scope = {**scope, "path": f"{root}/v1{path}"}
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                if message.get("more_body"):
                    return
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, without_body)
