"""Routes about the server itself: health, readiness, version, metrics."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from deployments.ingress.service import ModelService
from deployments.replicas.report import prometheus_text
from qwen3_a8w8.engine.plan import RunnerCapabilities
from qwen3_a8w8.errors import EngineDeadError
from qwen3_a8w8.experimental import FLAGS
from qwen3_a8w8.version import __version__, git_commit

ANSWER_TIMEOUT_S = 5.0
"""Seconds that a replica gets to answer a question about itself."""

HEALTH_TIMEOUT_S = 2.0
"""Seconds after which `/health` and `/ready` are 503, if no replica has answered."""


def add_status_routes(app: FastAPI, service: ModelService) -> None:
    """Adds the routes to an application."""
    commit = git_commit(Path(__file__).resolve().parent)

    @app.get("/health")
    async def health() -> Response:
        """Some replica is healthy: its loop turns and its actor answers."""
        await service.engine.check_ready(HEALTH_TIMEOUT_S)
        return JSONResponse({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        """A request would be served now: the model is loaded somewhere, and healthy."""
        begin_s = time.monotonic()
        if await _known_capabilities(HEALTH_TIMEOUT_S) is None:
            raise EngineDeadError(
                f"no replica has loaded the model, or none answered within {HEALTH_TIMEOUT_S:g} s"
            )
        left_s = begin_s + HEALTH_TIMEOUT_S - time.monotonic()
        await service.engine.check_ready(max(0.0, left_s))
        return JSONResponse({"status": "ready", "model": service.name})

    @app.get("/version")
    async def version() -> Response:
        """What runs here; `device` is null until a replica has loaded the model."""
        capabilities = await _known_capabilities(ANSWER_TIMEOUT_S)
        body: dict[str, Any] = {
            "version": __version__,
            "commit": commit,
            "model": service.name,
            "device": None if capabilities is None else capabilities.description,
            "max_model_len": None if capabilities is None else capabilities.max_model_len,
            "experimental": _flags(capabilities),
        }
        return JSONResponse(body)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus text of all replicas."""
        text = prometheus_text(await service.engine.reports(ANSWER_TIMEOUT_S))
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def _known_capabilities(timeout_s: float) -> RunnerCapabilities | None:
        try:
            return await asyncio.wait_for(service.engine.capabilities(), timeout_s)
        except (asyncio.TimeoutError, EngineDeadError):
            return None


def _flags(capabilities: RunnerCapabilities | None) -> dict[str, dict[str, Any]]:
    """Every experimental flag; whether it is on is null while no replica says so."""
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
