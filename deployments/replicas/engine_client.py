"""What text generation needs of the engines: `ReplicaClient` over Serve, a fake in tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from deployments.replicas.admission import Admission, Places
from deployments.replicas.failover import EngineLost
from deployments.replicas.failover_log import FailoverLog
from deployments.replicas.report import ReplicaActivity, ReplicaReport
from qwen3_a8w8.engine.plan import RunnerCapabilities
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent


class EngineClient(Protocol):
    """The engines behind one service."""

    @property
    def admission(self) -> Admission:
        """Decides whether the engines have room."""
        ...

    @property
    def failovers(self) -> FailoverLog:
        """The last failovers of streams."""
        ...

    def stream(
        self, request: EngineRequest, places: Places | None = None
    ) -> AsyncGenerator[TokenEvent | EngineLost, None]:
        """Runs a request with a seed and `n` = 1; see `failover.resumed_stream`.

        Args:
            request: the request.
            places: one of which it takes; None: nobody has asked whether there is room.
        """
        ...

    async def generate_batch(
        self, requests: list[EngineRequest], places: Places | None = None
    ) -> list[TokenEvent]:
        """Runs 1 or 16 requests as one batch; one event with the whole output for each."""
        ...

    async def capabilities(self) -> RunnerCapabilities:
        """What the runners can do; all replicas are alike."""
        ...

    async def reports(self, timeout_s: float) -> list[ReplicaReport]:
        """The state and counters of all running replicas.

        Raises:
            EngineDeadError: none is running, or one doesn't answer within `timeout_s` seconds.
        """
        ...

    async def activities(self, timeout_s: float) -> list[ReplicaActivity]:
        """What all running replicas are doing.

        Raises:
            EngineDeadError: none is running, or one doesn't answer within `timeout_s` seconds.
        """
        ...

    async def check_ready(self, timeout_s: float) -> None:
        """Raises EngineDeadError unless a healthy replica answers within `timeout_s`."""
        ...
