"""The op set that models are written in, and the exact arithmetic of each op.

Calling a method of `Ops` records an op and infers shapes. What the op computes is
specified by its docstring (one file per family of ops) and implemented in torch in
`reference_ops.py`. Ops are coarse, so that a backend usually maps one op to one kernel.

Two rules hold for every op (batch invariance):
* a row's result depends on that row alone: the order of a reduction depends neither
  on the number of rows, nor on the row's index, nor on the number of threads;
* rows past the live count of a counted Dim are neither read nor written.

Notation: T rows (tokens), H hidden, D head_dim, round = half to even.
`quantised row`: scale = max(max|x|, EPS) / 127, q = clamp(round(x / scale), +-127).
"""

from qwen3_a8w8.kernels.ops.cache import CacheOps, KvCache
from qwen3_a8w8.kernels.ops.linear import LinearOps, LinearWeight
from qwen3_a8w8.kernels.ops.rows import QUANT_EPS, RowOps
from qwen3_a8w8.kernels.ops.sampling import SAMPLE_CONTROLS, SamplingOps

__all__ = ["QUANT_EPS", "SAMPLE_CONTROLS", "KvCache", "LinearWeight", "Ops"]


class Ops(RowOps, LinearOps, CacheOps, SamplingOps):
    """Records the op calls of one callable; the first argument of every model function."""
