"""Routes about the server itself: health, readiness, version, metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from deployments.ingress.service import ModelService
from deployments.metrics.exposition import Exposition
from deployments.metrics.http_metrics import IngressReport
from qwen3_a8w8.engine.plan import RunnerCapabilities
from qwen3_a8w8.errors import EngineDeadError
from qwen3_a8w8.experimental import FLAGS
from qwen3_a8w8.version import __version__, git_commit

REPORT_TIMEOUT_S = 5.0
"""Seconds that a replica has to report about itself."""

HEALTH_TIMEOUT_S = 2.0
"""Seconds after which `/health` and `/ready` return 503 if no replica has responded."""


IngressReports = Callable[[float], Awaitable[list[IngressReport]]]
"""Reports of all ingress processes, within seconds."""


def add_status_routes(
    app: FastAPI, service: ModelService, ingress_reports: IngressReports, *, has_vllm_names: bool
) -> None:
    """Adds the routes to an application.

    Args:
        app: the application.
        service: the model.
        ingress_reports: asks the ingress processes, this one included.
        has_vllm_names: `/metrics` has vLLM's names too.
    """
    commit = git_commit(Path(__file__).resolve().parent)
    exposition = Exposition(service.name, commit, has_vllm_names)

    @app.get("/health")
    async def health() -> Response:
        """At least one replica is healthy: its engine loop runs and its actor responds."""
        await service.engine.check_ready(HEALTH_TIMEOUT_S)
        return JSONResponse({"status": "ok"})

    @app.get("/ping")
    async def ping() -> Response:
        """The same for hosts that ask for this path (SageMaker)."""
        return await health()

    @app.get("/load")
    async def load() -> Response:
        """Requests in progress and sequences in the queues, for load balancers."""
        reports = await service.engine.reports(REPORT_TIMEOUT_S)
        running = sum(report.stats.num_running for report in reports)
        waiting = sum(report.stats.num_waiting for report in reports)
        return JSONResponse(
            {"server_load": running + waiting, "num_running": running, "num_waiting": waiting}
        )

    @app.get("/ready")
    async def ready() -> Response:
        """A request would be served now: at least one healthy replica has loaded the model."""
        start_s = time.monotonic()
        if await _known_capabilities(HEALTH_TIMEOUT_S) is None:
            raise EngineDeadError(
                f"no replica has loaded the model, or none responded within {HEALTH_TIMEOUT_S:g} s"
            )
        left_s = start_s + HEALTH_TIMEOUT_S - time.monotonic()
        await service.engine.check_ready(max(0.0, left_s))
        return JSONResponse({"status": "ready", "model": service.name})

    @app.get("/version")
    async def version() -> Response:
        """Version and device; `device` is null until a replica has loaded the model."""
        capabilities = await _known_capabilities(REPORT_TIMEOUT_S)
        body: dict[str, Any] = {
            "version": __version__,
            "commit": commit,
            "model": service.name,
            "device": None if capabilities is None else capabilities.description,
            "max_model_len": None if capabilities is None else capabilities.max_model_len,
            "experimental": _flags(capabilities),
        }
        return JSONResponse(body)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics of all replicas and ingress processes in Prometheus text format."""
        replicas, ingresses = await asyncio.gather(
            service.engine.reports(REPORT_TIMEOUT_S), ingress_reports(REPORT_TIMEOUT_S)
        )
        text = exposition.text(replicas, ingresses)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def _known_capabilities(timeout_s: float) -> RunnerCapabilities | None:
        try:
            return await asyncio.wait_for(service.engine.capabilities(), timeout_s)
        except (asyncio.TimeoutError, EngineDeadError):
            return None


def _flags(capabilities: RunnerCapabilities | None) -> dict[str, dict[str, Any]]:
    """Every experimental flag; `enabled` is null until a replica reports it."""
    enabled = None
    if capabilities is not None:
        enabled = str(capabilities.description.get("flags", "")).split(", ")
    return {
        flag.name: {
            "enabled": None if enabled is None else flag.name in enabled,
            "is_validated": flag.is_validated,
            "changes": flag.changes,
        }
        for flag in FLAGS.values()
    }
