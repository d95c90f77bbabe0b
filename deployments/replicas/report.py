"""What a replica reports about itself."""

from __future__ import annotations

from dataclasses import dataclass

from qwen3_a8w8.engine.stats.activity import EngineActivity
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


@dataclass(frozen=True, slots=True)
class ReplicaActivity:
    """What one replica is doing at one moment.

    Attributes:
        replica_id: Serve's id.
        decode_batch_sizes: compiled decode batch sizes.
        max_model_len: longest prompt plus output in tokens.
        activity: of the engine.
    """

    replica_id: str
    decode_batch_sizes: tuple[int, ...]
    max_model_len: int
    activity: EngineActivity
