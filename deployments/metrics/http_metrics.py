"""Requests of an ingress process by route and status, and how long they took.

The middleware is the outermost, so that what is refused before the routes counts too. A route is
the path as it was declared (`/v1/models/{name}`), never what a client sent: the number of series
has to stay bounded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.metrics.families import Labels, counter, gauge, histogram, resident_bytes
from deployments.metrics.replica_metrics import PREFIX
from deployments.replicas.failover_log import Failover, FailoverLog
from qwen3_a8w8.engine.stats.request_stats import Histogram, one_two_five

NO_ROUTE = "none"
"""Route of requests that were refused before one was found, or have none."""

DISCONNECTED = 499
"""Status of requests whose client left before the response began; nginx's convention."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
_OTHER_METHOD = "other"
_DURATIONS_S = one_two_five(0.001, 1000)
_CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)

Route = tuple[str, str]
"""Method and path."""


def choices_histogram() -> Histogram:
    """For the `n` of requests."""
    return Histogram(_CHOICES)


@dataclass(frozen=True, slots=True)
class IngressReport:
    """One ingress process at one moment.

    Attributes:
        ingress_id: Serve's id.
        num_in_flight: requests that it is responding to.
        num_requests: responses that have ended, by route and status.
        durations_s: seconds from the arrival to the end of the response, by route.
        num_choices: `n` of the requests that the engines have accepted.
        resident_bytes: memory of the process; None: unknown.
        failovers: the last ones of its streams.
        num_failovers: all of them that are over, by outcome.
    """

    ingress_id: str
    num_in_flight: int
    num_requests: dict[tuple[Route, int], int]
    durations_s: dict[Route, Histogram]
    num_choices: Histogram
    resident_bytes: int | None
    failovers: tuple[Failover, ...] = ()
    num_failovers: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class HttpStats:
    """Counts of an ingress process; belongs to one event loop."""

    num_in_flight: int = 0
    num_requests: dict[tuple[Route, int], int] = field(default_factory=dict)
    durations_s: dict[Route, Histogram] = field(default_factory=dict)

    def count(self, route: Route, status: int, duration_s: float) -> None:
        """Adds a response that has ended."""
        key = (route, status)
        self.num_requests[key] = self.num_requests.get(key, 0) + 1
        self.durations_s.setdefault(route, Histogram(_DURATIONS_S)).observe(duration_s)

    def report(
        self, ingress_id: str, num_choices: Histogram, failovers: FailoverLog | None = None
    ) -> IngressReport:
        """A snapshot."""
        return IngressReport(
            ingress_id=ingress_id,
            num_in_flight=self.num_in_flight,
            num_requests=dict(self.num_requests),
            durations_s={route: values.copy() for route, values in self.durations_s.items()},
            num_choices=num_choices.copy(),
            resident_bytes=resident_bytes(os.getpid()),
            failovers=() if failovers is None else failovers.snapshot(),
            num_failovers={} if failovers is None else dict(failovers.num_settled),
        )


class HttpMetrics:
    """ASGI middleware that counts into `HttpStats`."""

    def __init__(self, app: ASGIApp, *, stats: HttpStats) -> None:
        self._app = app
        self._stats = stats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = DISCONNECTED

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        start_s = time.perf_counter()
        self._stats.num_in_flight += 1
        try:
            await self._app(scope, receive, watched_send)
        finally:
            self._stats.num_in_flight -= 1
            self._stats.count(_route(scope), status, time.perf_counter() - start_s)


def _route(scope: Scope) -> Route:
    method = scope["method"] if scope["method"] in METHODS else _OTHER_METHOD
    return method, getattr(scope.get("route"), "path", NO_ROUTE)


def http_metrics(ingresses: Sequence[IngressReport]) -> Iterator[Metric]:
    """All families of the ingress processes."""
    yield counter(
        f"{PREFIX}_http_requests",
        "responses by route and status",
        [
            ({**_labels(one, route), "status": str(status)}, count)
            for one in ingresses
            for (route, status), count in one.num_requests.items()
        ],
    )
    yield histogram(
        f"{PREFIX}_http_request_duration_seconds",
        "seconds from a request's arrival to the end of its response",
        [
            (_labels(one, route), values)
            for one in ingresses
            for route, values in one.durations_s.items()
        ],
    )
    yield gauge(
        f"{PREFIX}_http_requests_in_flight",
        "requests that are being responded to",
        [({"ingress": one.ingress_id}, one.num_in_flight) for one in ingresses],
    )
    yield histogram(
        f"{PREFIX}_request_params_n",
        "n of accepted requests",
        [({"ingress": one.ingress_id}, one.num_choices) for one in ingresses],
    )
    yield counter(
        f"{PREFIX}_failovers",
        "running requests that lost their engine, by how that ended",
        [
            ({"ingress": one.ingress_id, "outcome": outcome}, count)
            for one in ingresses
            for outcome, count in one.num_failovers.items()
        ],
    )
    yield gauge(
        f"{PREFIX}_ingress_resident_memory_bytes",
        "resident memory of an ingress process",
        [
            ({"ingress": one.ingress_id}, one.resident_bytes)
            for one in ingresses
            if one.resident_bytes is not None
        ],
    )


def _labels(report: IngressReport, route: Route) -> Labels:
    method, path = route
    return {"ingress": report.ingress_id, "method": method, "handler": path}
