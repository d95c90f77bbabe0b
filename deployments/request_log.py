"""Logs refused requests in one line.

Serve logs every exception of a replica's method at ERROR with its traceback. An invalid request,
or one that meets a full queue, isn't a failure of the replica.
"""

from __future__ import annotations

import logging

from qwen3_a8w8.errors import CapacityError, InvalidRequestError

_LEVELS = ((InvalidRequestError, logging.INFO), (CapacityError, logging.WARNING))


class RefusalFilter(logging.Filter):
    """Replaces the traceback of a refusal by one line; other records pass unchanged."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Changes the record in place; False if the logger doesn't log its new level."""
        error = record.exc_info[1] if record.exc_info else None
        level = next((level for kind, level in _LEVELS if isinstance(error, kind)), None)
        if level is None:
            return True
        record.levelno, record.levelname = level, logging.getLevelName(level)
        # A message may contain the client's text, including newlines.
        record.msg, record.args = "request refused: %s", (" ".join(str(error).split()),)
        record.exc_info = record.exc_text = None
        return logging.getLogger(record.name).isEnabledFor(level)
