"""Framing of server-sent events as OpenAI's clients read them.

Source: WHATWG HTML, section 9.2, "Server-sent events".
"""

from __future__ import annotations

import json

from qwen3_a8w8.openai.errors import error_body
from qwen3_a8w8.openai.response import ResponseModel

MEDIA_TYPE = "text/event-stream"
DONE_FRAME = "data: [DONE]\n\n"
KEEP_ALIVE_FRAME = ": keep-alive\n\n"
"""A comment; clients skip it, proxies see that the connection lives."""


def data_frame(event: ResponseModel) -> str:
    """Frame of one chunk."""
    # The JSON is on one line: every line break inside a string is escaped.
    name = event.event_name
    data = f"data: {event.to_json()}\n\n"
    return data if name is None else f"event: {name}\n{data}"


def error_frame(error: BaseException, *, code: str | None = None) -> str:
    """Frame that tells a client that its stream broke; `DONE_FRAME` may follow."""
    return f"data: {json.dumps(error_body(error, code=code), ensure_ascii=False)}\n\n"
