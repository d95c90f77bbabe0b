"""The log line of a refused request, in ingress and replicas."""

from __future__ import annotations

import logging

from qwen3_a8w8.errors import CapacityError, InvalidRequestError

_LEVELS = ((InvalidRequestError, logging.INFO), (CapacityError, logging.WARNING))


class RefusalFilter(logging.Filter):
    """Logs a refused request as one line; everything else passes as it is.

    Serve logs whatever a replica's method raises at ERROR with its traceback. A request that its
    client has to change, or that meets a full queue, is no failure of the replica.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Changes the record in place; False where the logger isn't to show its new level."""
        error = record.exc_info[1] if record.exc_info else None
        level = next((level for kind, level in _LEVELS if isinstance(error, kind)), None)
        if level is None:
            return True
        record.levelno, record.levelname = level, logging.getLevelName(level)
        # A message may show what the client wrote, newlines and all.
        record.msg, record.args = "request refused: %s", (" ".join(str(error).split()),)
        record.exc_info = record.exc_text = None
        return logging.getLogger(record.name).isEnabledFor(level)
