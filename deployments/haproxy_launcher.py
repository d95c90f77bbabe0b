"""Runs HAProxy for a local application; Ray's proxy starts this in its place.

Ray writes HAProxy's configuration anew before every start. Here it loses what nobody on this
machine needs, above all two ports that are open to everyone, and gets the answers that clients of
OpenAI's API can read. Run as a script by a bare interpreter, so it imports the standard library
only; what it has to know is in a file that `haproxy.py` writes.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

CLOSED_SECTIONS = ("frontend prometheus", "listen stats")
"""Sections that listen on all interfaces, without a password: figures of the proxy."""

_PR_SET_PDEATHSIG = 1


def restrict(config: str, plan: dict[str, Any]) -> str:
    """Ray's configuration with one port, a private socket, and readable errors.

    Args:
        config: as Ray has written it.
        plan: `bind`, where to listen; `lost`, file with HAProxy's answer when it has got none;
            `not_ready`, file with the body of the answer while there is no application.

    Raises:
        ValueError: the configuration isn't built as expected.
    """
    lines: list[str] = []
    section = ""
    num_binds = 0
    for line in config.splitlines():
        words = line.split()
        if words and not line[0].isspace() and not line.startswith("#"):
            section = line.strip()
        if section in CLOSED_SECTIONS or words[:1] == ["errorfile"]:
            continue
        if words[:2] == ["http-response", "return"]:
            continue  # ours, of a start before
        if section == "global" and words[:1] == ["log"]:
            continue  # to whoever listens at the port of syslog
        if words[:2] == ["stats", "socket"]:
            line = line.replace(" mode 666 ", " mode 600 ")
        elif words[:1] == ["bind"]:
            num_binds += 1
            line = f"    bind {plan['bind']}"
        elif section == "backend default_backend" and words[:2] == ["http-request", "return"]:
            line = (
                "    http-request return status 503 content-type application/json "
                f"file {plan['not_ready']} hdr Retry-After 1"
            )
        lines.append(line)
        if words[:1] == ["bind"]:
            # Without a route, Serve's own proxy behind this one says so in plain text; the
            # application's answers are JSON.
            lines.append(
                "    http-response return status 503 content-type application/json "
                f"file {plan['not_ready']} hdr Retry-After 1 "
                "if { status 404 } { res.hdr(content-type) -m beg text/plain }"
            )
        if line == "defaults":
            # Only what has come in whole can be sent again.
            lines.append("    option http-buffer-request")
            lines += [f"    errorfile {code} {plan['lost']}" for code in (500, 502, 503, 504)]
    if num_binds != 1 or "defaults" not in lines:
        raise ValueError(
            f"this Ray writes another HAProxy configuration ({num_binds} ports instead of 1); "
            "use Serve's Python proxy, or the version of Ray that this package is tested with"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Becomes HAProxy, with the arguments behind the plan's path."""
    plan_file, *arguments = sys.argv[1:]
    plan = json.loads(Path(plan_file).read_text(encoding="utf-8"))
    config = Path(arguments[arguments.index("-f") + 1])
    config.write_text(restrict(config.read_text(encoding="utf-8"), plan), encoding="utf-8")
    # A killed parent would leave it behind, with the port.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.execv(plan["binary"], [plan["binary"], *arguments])


if __name__ == "__main__":
    main()
