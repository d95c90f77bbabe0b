"""How the events of a generation are framed in a stream: one object for each API.

Source of server-sent events: WHATWG HTML, section 9.2.
"""

from __future__ import annotations

import json
from typing import Protocol

from qwen3_a8w8.openai.errors import error_body
from qwen3_a8w8.openai.response import ResponseModel

KEEP_ALIVE_FRAME = ": keep-alive\n\n"
"""A comment; clients skip it, proxies see that the connection lives."""
WAITING_FRAME = ": waiting for an engine\n\n"
"""The comment of a stream whose engine is lost, until another one goes on with it."""
DONE_FRAME = "data: [DONE]\n\n"


class Framing(Protocol):
    """The frames of one API.

    Attributes:
        media_type: of the response.
        keep_alive: sent while nothing comes; "": nothing can be sent.
        waiting: sent while no engine computes.
        end: the last frame.
    """

    media_type: str
    keep_alive: str
    waiting: str
    end: str

    def event(self, event: ResponseModel) -> str:
        """Frame of one event."""
        ...

    def error(self, error: Exception, code: str | None) -> str:
        """Frame that reports a broken stream."""
        ...


class OpenAiFraming:
    """Server-sent events that end with `[DONE]`."""

    media_type = "text/event-stream"
    keep_alive = KEEP_ALIVE_FRAME
    waiting = WAITING_FRAME
    end = DONE_FRAME

    def event(self, event: ResponseModel) -> str:
        """See `Framing`."""
        # The JSON is on one line: every line break inside a string is escaped.
        name = event.event_name
        data = f"data: {event.to_json()}\n\n"
        return data if name is None else f"event: {name}\n{data}"

    def error(self, error: Exception, code: str | None) -> str:
        """See `Framing`."""
        return f"data: {json.dumps(error_body(error, code=code), ensure_ascii=False)}\n\n"


class AnthropicFraming(OpenAiFraming):
    """Server-sent events with names and without an end of their own; `ping` keeps them alive."""

    keep_alive = 'event: ping\ndata: {"type": "ping"}\n\n'
    end = ""


class JsonLinesFraming:
    """Ollama's: an object on each line. There is no line that clients would skip."""

    media_type = "application/x-ndjson"
    keep_alive = ""
    waiting = ""
    end = ""

    def event(self, event: ResponseModel) -> str:
        """See `Framing`."""
        return f"{event.to_json()}\n"

    def error(self, error: Exception, code: str | None) -> str:
        """See `Framing`."""
        message = error_body(error, code=code)["error"]["message"]
        return json.dumps({"error": message}, ensure_ascii=False) + "\n"
