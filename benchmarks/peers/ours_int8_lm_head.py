"""This project's engine with lm_head in int8, as most peers have it (experimental flag)."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.ours import Ours
from benchmarks.peers.workload import Workload, run_adapter


def load(checkpoint: Path, threads: int, workload: Workload) -> Ours:
    """The engine with the flag set."""
    return Ours(checkpoint, threads, workload, enable=("int8_lm_head",))


if __name__ == "__main__":
    run_adapter("ours_int8_lm_head", ["torch"], load)
