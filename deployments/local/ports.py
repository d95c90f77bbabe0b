"""Free ports for servers on the same machine as a local Ray."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """A free port below the ephemeral range, of which Ray's processes use dozens.

    Raises:
        OSError: every port from 20000 to 29999 is taken; stop the processes that use them.
    """
    ports = list(range(20000, 30000))
    random.shuffle(ports)
    for port in ports:
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise OSError("no port from 20000 to 29999 is free; stop the processes that use them")
