"""`Ops`: all families of ops in one recorder."""

from __future__ import annotations

from qwen3_a8w8.kernels.ops.cache import CacheOps
from qwen3_a8w8.kernels.ops.linear import LinearOps
from qwen3_a8w8.kernels.ops.rows import RowOps
from qwen3_a8w8.kernels.ops.sampling import SamplingOps


class Ops(RowOps, LinearOps, CacheOps, SamplingOps):
    """Records the op calls of one callable; the first argument of every model function."""
