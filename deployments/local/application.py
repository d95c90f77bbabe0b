"""Runs the whole application on one machine: starts a local Ray and Serve, and stops both.

For `qwen3-a8w8 serve`, the demo and the tests; a cluster uses `serve deploy` with a YAML.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import HTTPOptions
from ray.serve.schema import LoggingConfig

import deployments
from deployments.app import APPLICATION_NAME, build_app
from deployments.http.api_keys import ApiKeys
from deployments.local.haproxy import DEFAULT_HTTP_PROXY, SERVE_HOST, HttpProxy, proxy_environment
from deployments.settings import AppSettings
from qwen3_a8w8 import errors
from qwen3_a8w8.checkpoint.resolve import resolve_model
from qwen3_a8w8.errors import ConfigError, EngineDeadError, Qwen3A8W8Error

OBJECT_STORE_BYTES = 96 * 2**20
"""Nothing is stored there: messages are small enough to be passed inline with the calls."""


def announce(url: str) -> None:
    """Prints to standard output that the server is ready."""
    print(f"Serving at {url}/v1 (OpenAI-compatible), page at {url}/; Ctrl-C stops it.", flush=True)


def serve_local(
    settings: AppSettings,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    http_proxy: HttpProxy = DEFAULT_HTTP_PROXY,
    on_ready: Callable[[str], None] = announce,
    has_logs: bool = False,
) -> None:
    """Serves until SIGINT or SIGTERM, then shuts everything down.

    Args:
        settings: the application.
        host: address to listen on.
        port: port to listen on.
        http_proxy: the proxy that accepts the requests.
        on_ready: called once with the base URL when the server is ready.
        has_logs: show the processes' logs here, not only in Ray's log directory.

    Raises:
        ConfigError: a setting can't be used, or the port is taken.
        CheckpointError: the model can't be found or read.
        Qwen3A8W8Error: an engine didn't start for another reason.
    """
    application = local_application(settings, host, port, http_proxy=http_proxy, has_logs=has_logs)
    with application as url:
        # Only now: while it starts, Ctrl-C raises KeyboardInterrupt and the context ends.
        asyncio.run(_until_signal(lambda: on_ready(url)))


async def _until_signal(on_ready: Callable[[], None]) -> None:
    # The loop is woken whichever of Ray's many threads receives the signal.
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    on_ready()
    await stop.wait()


@contextlib.contextmanager
def local_application(
    settings: AppSettings,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    http_proxy: HttpProxy = DEFAULT_HTTP_PROXY,
    has_logs: bool = False,
) -> Iterator[str]:
    """Runs the application on its own local Ray for the duration of the context.

    Yields:
        The base URL, once the server is ready.

    Raises:
        ConfigError: a setting can't be used, the port is taken, the proxy can't be run, or this
            process uses Ray already.
        CheckpointError: the model can't be found or read.
        Qwen3A8W8Error: an engine didn't start for another reason.
    """
    _check(settings, host, port)
    proxy_variables = proxy_environment(
        http_proxy, host, port, max_header_bytes=settings.http.max_header_bytes
    )
    with proxy_variables as proxy:
        try:
            with _ray_environment(proxy):
                _start_ray(settings, has_logs=has_logs)
                _start_serve(SERVE_HOST if http_proxy == "haproxy" else host, port)
                _run(settings)
            yield f"http://{host}:{port}"
        finally:
            # Only on the Ray of this process: without one, asking Serve would join any other.
            # The controller ends with this Ray; serve.shutdown() before that would only log an
            # error about it.
            if ray.is_initialized() and serve.status().applications:
                serve.delete(APPLICATION_NAME)
            ray.shutdown()


def _check(settings: AppSettings, host: str, port: int) -> None:
    """Validates what can be validated before anything is started."""
    settings.engine.to_config()
    ApiKeys.from_settings(settings.security)
    resolve_model(settings.model)
    if ray.is_initialized():
        raise ConfigError(
            "this process is connected to a Ray cluster already; disconnect first, or deploy there "
            "with serve.run(build_app(settings))"
        )
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"can't listen on {host}:{port}: {error.strerror}; choose another port, or stop "
                "the process that uses it"
            ) from error


def _start_ray(settings: AppSettings, *, has_logs: bool) -> None:
    replicas, http = settings.replicas, settings.http
    num_reserved = (
        replicas.num_replicas * (replicas.batch_router_num_cpus + replicas.actor_num_cpus)
        + http.num_replicas * http.num_cpus
    )
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        ray.init(
            address="local",
            # Ray's CPUs are only bookkeeping; a small machine may still run everything.
            num_cpus=max(os.cpu_count() or 1, math.ceil(num_reserved)),
            resources=_custom_resources(settings),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=has_logs,
            # Ray's warnings here are about settings that are intended.
            logging_level=logging.ERROR,
        )
    except Exception as error:  # Ray raises plain ones too
        raise EngineDeadError(
            f"Ray couldn't be started: {str(error).strip().splitlines()[0]}; if the machine is "
            "busy, try again later, and see /tmp/ray/session_latest/logs"
        ) from error


def _start_serve(host: str, port: int) -> None:
    try:
        serve.start(http_options=HTTPOptions(host=host, port=port), logging_config=_logging())
    except (RayError, RuntimeError) as error:
        report = str(error)
        if "Address already in use" in report:  # taken since `_check`
            raise ConfigError(
                f"can't listen on port {port}: another process has taken it while this one "
                "started; choose another port, or stop that process"
            ) from None
        raise EngineDeadError(f"Serve's proxy couldn't be started: {report}") from None


def _custom_resources(settings: AppSettings) -> dict[str, float]:
    replicas = settings.replicas
    return {
        name: amount * replicas.num_replicas for name, amount in replicas.actor_resources.items()
    }


def _run(settings: AppSettings) -> None:
    try:
        serve.run(
            build_app(settings),
            name=APPLICATION_NAME,
            route_prefix="/",
            logging_config=_logging(),
        )
    except RuntimeError as error:
        application = serve.status().applications[APPLICATION_NAME]
        reports = [deployment.message for deployment in application.deployments.values()]
        raise _startup_error("\n".join([*reports, str(error)])) from None


def _startup_error(report: str) -> Qwen3A8W8Error:
    """Restores the error that ended a process from Serve's reports, which are traceback texts."""
    found = re.findall(rf"{errors.__name__}\.(\w+): (.+)", report)
    if not found:
        return EngineDeadError(f"the application couldn't be started: {report}")
    name, message = found[0]
    kind = getattr(errors, name, EngineDeadError)
    result: Qwen3A8W8Error = kind(message)
    return result


def _logging() -> LoggingConfig:
    return LoggingConfig(log_level="WARNING", enable_access_log=False)


@contextlib.contextmanager
def _ray_environment(proxy: Mapping[str, str]) -> Iterator[None]:
    """Sets the environment that Ray and its processes inherit, including the proxy's.

    They import this package from the same place as this process, installed or not.
    """
    root = str(Path(deployments.__file__).resolve().parents[1])
    variables = {
        "PYTHONPATH": os.pathsep.join(
            [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        ),
        "RAY_USAGE_STATS_ENABLED": "0",
        # The actor requests no GPU from Ray; Ray must not hide the GPUs of the machine.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # A crashed proxy is replaced after three of these; Serve's 10 s are meant for clusters.
        # Less would replace one that is only slow while it loads a new configuration.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",
        # A proxy that isn't up after Serve's 5 s is killed, and the start fails with it; on a busy
        # or slow machine it takes longer. Serve itself waits for 60 s and no more.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        **proxy,
    }
    previous = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
