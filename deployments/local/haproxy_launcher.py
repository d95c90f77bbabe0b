"""Runs HAProxy for a local application; Ray's proxy starts this in its place.

Ray writes HAProxy's configuration anew before every start. Here it loses what nobody on this
machine needs, above all two ports that are open to everyone, gets the answers that clients of
OpenAI's API can read, and is made to give one of them whatever dies behind it. Run as a script by
a bare interpreter, so it imports the standard library only; what it has to know is in a file that
`haproxy.py` writes.
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

FRONTEND = "frontend http_frontend"
"""Ray's section that takes the requests."""

_MARK = "# restricted"
_PR_SET_PDEATHSIG = 1


def restrict(config: str, plan: dict[str, Any]) -> str:
    """Ray's configuration with one port, a private socket, readable errors, and always an answer.

    HAProxy closes a connection without a word, in the belief that clients repeat what they sent on
    a connection used before, in two cases: the server ends under a request that isn't the first of
    its client's connection, or the last that was tried of the server's connections had been used
    before. So every request passes through HAProxy twice, the second time, where servers may end,
    on a connection of its own; and it reaches its server on one of its own.

    Args:
        config: as Ray has written it.
        plan: `bind`, where to listen; `inner`, path of the socket for the second time;
            `max_clients`, connections at most, half of what Ray's configuration takes;
            `max_headers`, headers of a request that pass; `lost`, file with HAProxy's answer when
            it has got none, and `lost_body`, with its body; `not_ready`, file with the body of the
            answer while there is no application.

    Raises:
        ValueError: the configuration isn't built as expected.
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
            continue  # to whoever listens at the port of syslog
        if line == FRONTEND:
            lines += _first_time(plan)
        if words[:2] == ["stats", "socket"]:
            line = line.replace(" mode 666 ", " mode 600 ")
        elif words[:1] == ["http-reuse"]:
            continue
        elif words[:1] == ["bind"]:
            num_binds += 1
            line = f"    bind unix@{plan['inner']} mode 600"
        elif section == "backend default_backend" and words[:2] == ["http-request", "return"]:
            line = f"    http-request {_answer(plan['not_ready'])}"
        lines.append(line)
        if line == "global":
            lines.append(f"    tune.http.maxhdr {plan['max_headers']}")
        if words[:1] == ["bind"]:
            # What Serve says itself, the proxy that has no route or the one that lost an ingress,
            # is plain text; the application's answers are JSON.
            for status, body in (("404", plan["not_ready"]), ("500:599", plan["lost_body"])):
                condition = f"{{ status {status} }} {{ res.hdr(content-type) -m beg text/plain }}"
                lines.append(f"    http-response {_answer(body)} if {condition}")
        if line == "defaults":
            lines += [
                # Only what has come in whole can be sent again.
                "    option http-buffer-request",
                "    http-reuse never",
                "    option http-server-close",
                # A busy server isn't a dead one: a dead one refuses the connection.
                "    timeout check 5s",
            ]
            lines += [f"    errorfile {code} {plan['lost']}" for code in (500, 502, 503, 504)]
    if num_binds != 1 or not {"global", "defaults", FRONTEND} <= set(lines):
        raise ValueError(
            f"this Ray writes another HAProxy configuration ({num_binds} ports instead of 1); "
            "use Serve's Python proxy, or the version of Ray that this package is tested with"
        )
    return "\n".join(lines) + "\n"


def _first_time(plan: dict[str, Any]) -> list[str]:
    """Sections that take the clients' connections and pass on each request on a new one."""
    return [
        "frontend clients",
        f"    bind {plan['bind']}",
        # The other half is for the second time; without it nothing would come to an end.
        f"    maxconn {plan['max_clients']}",
        "    default_backend once_more",
        "backend once_more",
        "    no option http-buffer-request",
        "    retry-on conn-failure",
        f"    server inner unix@{plan['inner']}",
    ]


def _answer(body: str) -> str:
    return f"return status 503 content-type application/json file {body} hdr Retry-After 1"


def main() -> None:
    """Becomes HAProxy, with the arguments behind the plan's path.

    Raises:
        SystemExit: the arguments name no configuration, or none that can be used.
    """
    plan_file, *arguments = sys.argv[1:]
    config = _config_file(arguments)
    try:
        plan = json.loads(Path(plan_file).read_text(encoding="utf-8"))
        config.write_text(restrict(config.read_text(encoding="utf-8"), plan), encoding="utf-8")
    except (OSError, ValueError) as error:
        sys.exit(f"HAProxy wasn't started: {error}")
    # A killed parent would leave it behind, with the port.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.execv(plan["binary"], [plan["binary"], *arguments])


def _config_file(arguments: list[str]) -> Path:
    if "-f" not in arguments[:-1]:
        sys.exit(
            f"HAProxy wasn't started: no configuration in its arguments {arguments}; this program "
            "runs it with the one that Ray has written: add -f FILE"
        )
    return Path(arguments[arguments.index("-f") + 1])


if __name__ == "__main__":
    main()
