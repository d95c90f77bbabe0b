"""`GET /engine/state`: what the engines are doing right now, for the page and for people.

The answer is shared between those who ask within `MAX_AGE_S`, so any number of open pages costs
the replicas no more than one does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from deployments.http.status_routes import IngressReports
from deployments.ingress.service import ModelService
from deployments.metrics.http_metrics import IngressReport
from deployments.replicas.report import ReplicaActivity
from qwen3_a8w8.engine.stats.activity import EngineActivity, Second
from qwen3_a8w8.errors import EngineDeadError

STATE_PATH = "/engine/state"

MAX_AGE_S = 0.5
"""Seconds for which an answer is given again."""

ACTIVITY_TIMEOUT_S = 2.0
"""Seconds that the replicas have to answer."""


def add_engine_routes(app: FastAPI, service: ModelService, ingress_reports: IngressReports) -> None:
    """Adds the route to an application.

    Args:
        app: the application.
        service: the model.
        ingress_reports: asks the ingress processes, this one included.
    """
    state = SharedState(service, ingress_reports)

    @app.get(STATE_PATH)
    async def engine_state() -> Response:
        """Per replica: rows, queue, prefill, KV blocks, last steps and seconds; failovers."""
        return JSONResponse(await state.read(), headers={"Cache-Control": "no-store"})


class SharedState:
    """The state, asked for at most once per `MAX_AGE_S`."""

    def __init__(self, service: ModelService, ingress_reports: IngressReports) -> None:
        self._service = service
        self._ingress_reports = ingress_reports
        self._lock = asyncio.Lock()
        self._state: dict[str, Any] = {}
        self._read_s = -MAX_AGE_S

    async def read(self) -> dict[str, Any]:
        """The state, at most `MAX_AGE_S` old; without replicas it says why there are none."""
        async with self._lock:
            if time.monotonic() - self._read_s >= MAX_AGE_S:
                self._state = await self._ask()
                self._read_s = time.monotonic()
            return self._state

    async def _ask(self) -> dict[str, Any]:
        replicas, ingresses = await asyncio.gather(
            self._service.engine.activities(ACTIVITY_TIMEOUT_S),
            self._ingress_reports(ACTIVITY_TIMEOUT_S),
            return_exceptions=True,
        )
        error = None
        for answer in (replicas, ingresses):
            if isinstance(answer, BaseException):
                if not isinstance(answer, EngineDeadError):
                    raise answer
                error = str(answer)
        return {
            "object": "engine.state",
            "model": self._service.name,
            "at_s": time.time(),
            "error": error,
            "replicas": []
            if isinstance(replicas, BaseException)
            else [_replica(one) for one in replicas],
            "failovers": [] if isinstance(ingresses, BaseException) else _failovers(ingresses),
        }


def _replica(replica: ReplicaActivity) -> dict[str, Any]:
    return {
        "id": replica.replica_id,
        "decode_batch_sizes": list(replica.decode_batch_sizes),
        "max_model_len": replica.max_model_len,
        **_engine(replica.activity),
    }


def _engine(activity: EngineActivity) -> dict[str, Any]:
    return {
        "running": [asdict(one) for one in activity.running],
        "waiting": {
            "num_sequences": activity.num_waiting,
            "num_tokens": activity.num_waiting_tokens,
            "first": [asdict(one) for one in activity.waiting],
            "blocked": activity.blocked,
        },
        "blocks": {
            "in_use": activity.num_blocks_in_use,
            "total": activity.num_blocks,
            "block_size": activity.block_size,
        },
        "num_finished": activity.num_finished,
        "decode_reason": activity.decode_reason,
        "steps": [asdict(one) for one in activity.steps],
        "seconds": [_second(one, activity.now_s) for one in activity.seconds],
    }


def _second(second: Second, now_s: float) -> dict[str, Any]:
    """With its age, as the engine's clock means nothing elsewhere."""
    values = asdict(second)
    return {"age_s": int(now_s) - values.pop("at_s"), **values}


def _failovers(ingresses: Sequence[IngressReport]) -> list[dict[str, Any]]:
    entries = [entry for ingress in ingresses for entry in ingress.failovers]
    return [asdict(entry) for entry in sorted(entries, key=lambda entry: entry.at_s)]
