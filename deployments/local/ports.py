"""Ports for servers that are started beside a Ray of their own."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """A free port below those that the system hands out, which Ray's processes take by the dozen.

    Raises:
        OSError: every port from 20000 to 29999 is taken; end the processes that have them.
    """
    ports = list(range(20000, 30000))
    random.shuffle(ports)
    for port in ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port from 20000 to 29999 is free; end the processes that have them")
