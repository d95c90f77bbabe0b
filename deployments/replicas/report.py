"""What a replica reports about itself."""

from __future__ import annotations

from dataclasses import dataclass

from qwen3_a8w8.engine.stats.engine_stats import EngineStats


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """One replica at one moment.

    Attributes:
        replica_id: Serve's id.
        replica_pid: process of the batch router.
        actor_pid: process of the actor.
        stats: of the engine.
        replica_bytes: resident memory of the batch router's process; None: unknown.
        actor_bytes: of the actor's, mapped weights included.
    """

    replica_id: str
    replica_pid: int
    actor_pid: int
    stats: EngineStats
    replica_bytes: int | None = None
    actor_bytes: int | None = None
