"""Runs HAProxy for a local application; Ray's proxy starts this in its place.

Ray rewrites HAProxy's configuration before every start. This module removes what a local server
doesn't need, above all two ports that are open to everyone, adds error responses that clients of
OpenAI's API can parse, and makes HAProxy send one of them whatever crashes behind it. A bare
interpreter runs it as a script, so it imports the standard library only; its parameters are in a
file that `haproxy.py` writes.
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
"""Sections that serve the proxy's statistics on all interfaces, without a password."""

FRONTEND = "frontend http_frontend"
"""Ray's section that accepts the requests."""

_MARK = "# restricted"
_PR_SET_PDEATHSIG = 1


def restrict(config: str, plan: dict[str, Any]) -> str:
    """Rewrites Ray's configuration: one port, a private socket, JSON errors, always a response.

    HAProxy closes a connection without a response in two cases, because it expects clients to
    repeat requests on a reused connection: the server fails during a request that isn't the first
    on its client's connection, or the server connection that was tried last had been used before.
    So every request passes through HAProxy twice: the second pass, where servers may fail, gets a
    new connection for each request, and so does the server.

    Args:
        config: as written by Ray.
        plan: `bind`, listen address; `inner`, path of the socket for the second pass;
            `max_clients`, most connections, half of the limit in Ray's configuration;
            `max_headers`, most headers of a request; `lost`, file with HAProxy's response when
            it received none, and `lost_body`, with its body; `not_ready`, file with the body of
            the response while there is no application.

    Raises:
        ValueError: the configuration doesn't have the expected structure.
    """
    if config.startswith(_MARK):
        return config
    lines = [_MARK]
    section = ""
    num_binds = 0
    for line in config.splitlines():
        words = line.split()
        if words and not line[0].isspace() and not line.startswith("#"):
            section = line.strip()
        if section in CLOSED_SECTIONS or words[:1] == ["errorfile"]:
            continue
        if section == "global" and words[:1] == ["log"]:
            continue  # would send to any process on the syslog port
        if line == FRONTEND:
            lines += _first_pass(plan)
        if words[:2] == ["stats", "socket"]:
            line = line.replace(" mode 666 ", " mode 600 ")
        elif words[:1] == ["http-reuse"]:
            continue
        elif words[:1] == ["bind"]:
            num_binds += 1
            line = f"    bind unix@{plan['inner']} mode 600"
        elif section == "backend default_backend" and words[:2] == ["http-request", "return"]:
            line = f"    http-request {_respond(plan['not_ready'])}"
        lines.append(line)
        if line == "global":
            lines.append(f"    tune.http.maxhdr {plan['max_headers']}")
        if words[:1] == ["bind"]:
            # Serve's own errors (no route, lost ingress) are plain text; the application's
            # responses are JSON.
            for status, body in (("404", plan["not_ready"]), ("500:599", plan["lost_body"])):
                condition = f"{{ status {status} }} {{ res.hdr(content-type) -m beg text/plain }}"
                lines.append(f"    http-response {_respond(body)} if {condition}")
        if line == "defaults":
            lines += [
                # Only a request that was received completely can be sent again.
                "    option http-buffer-request",
                "    http-reuse never",
                "    option http-server-close",
                # A busy server hasn't crashed: a crashed one refuses the connection.
                "    timeout check 5s",
            ]
            lines += [f"    errorfile {code} {plan['lost']}" for code in (500, 502, 503, 504)]
    if num_binds != 1 or not {"global", "defaults", FRONTEND} <= set(lines):
        raise ValueError(
            f"this Ray writes a different HAProxy configuration ({num_binds} ports instead of 1); "
            "use Serve's Python proxy, or the Ray version that this package is tested with"
        )
    return "\n".join(lines) + "\n"


def _first_pass(plan: dict[str, Any]) -> list[str]:
    """Sections that accept client connections and forward each request on a new one."""
    return [
        "frontend clients",
        f"    bind {plan['bind']}",
        # The other half is for the second pass; without it no request could complete.
        f"    maxconn {plan['max_clients']}",
        "    default_backend once_more",
        "backend once_more",
        "    no option http-buffer-request",
        "    retry-on conn-failure",
        f"    server inner unix@{plan['inner']}",
    ]


def _respond(body: str) -> str:
    return f"return status 503 content-type application/json file {body} hdr Retry-After 1"


def main() -> None:
    """Replaces this process with HAProxy, with the arguments after the plan's path.

    Raises:
        SystemExit: the arguments name no configuration, or it can't be used.
    """
    plan_file, *arguments = sys.argv[1:]
    config = _config_file(arguments)
    try:
        plan = json.loads(Path(plan_file).read_text(encoding="utf-8"))
        config.write_text(restrict(config.read_text(encoding="utf-8"), plan), encoding="utf-8")
    except (OSError, ValueError) as error:
        sys.exit(f"HAProxy wasn't started: {error}")
    # Otherwise HAProxy would outlive a killed parent and keep the port.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.execv(plan["binary"], [plan["binary"], *arguments])


def _config_file(arguments: list[str]) -> Path:
    if "-f" not in arguments[:-1]:
        sys.exit(
            f"HAProxy wasn't started: no configuration in the arguments {arguments}; this program "
            "needs the one that Ray has written: add -f FILE"
        )
    return Path(arguments[arguments.index("-f") + 1])


if __name__ == "__main__":
    main()
