"""The page at `/`: a chat and a view of the engines, as static files of this package.

The files are read once and served from memory, under the names that they have in `page/` and no
others. They hold no data: everything that the page shows it asks the API for, with the key that
its user types in. The headers keep the page to this server: no script, style, image or request of
another origin, and no frame around it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

DIRECTORY = Path(__file__).parent / "page"

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # The browser asks each time whether the file is still the same, and gets a 304 if it is.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page.

    Attributes:
        content: its bytes.
        media_type: by its suffix.
        etag: by its content.
    """

    content: bytes
    media_type: str
    etag: str

    @classmethod
    def read(cls, path: Path) -> PageFile:
        """Reads a file of a type that `MEDIA_TYPES` knows."""
        content = path.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        return cls(content, MEDIA_TYPES[path.suffix], etag)

    def response(self, request: Request) -> Response:
        """The file, or a 304 to a browser that has it."""
        headers = {**HEADERS, "ETag": self.etag}
        if request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


FILES = {
    path.name: PageFile.read(path)
    for path in sorted(DIRECTORY.iterdir())
    if path.suffix in MEDIA_TYPES
}

INDEX = "index.html"

PAGE_PATHS = frozenset({"/", *(f"/page/{name}" for name in FILES if name != INDEX)})
"""Paths of the files, which need no API key."""


def add_page_routes(app: FastAPI) -> None:
    """Adds the page to an application."""

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return FILES[INDEX].response(request)

    @app.get("/page/{name}", include_in_schema=False)
    async def page_file(request: Request, name: str) -> Response:
        if name not in FILES or name == INDEX:
            raise HTTPException(404, "the page has no such file")
        return FILES[name].response(request)
