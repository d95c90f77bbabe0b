"""The op set that models are written in, and the exact arithmetic of each op.

Calling an op on an `Ops` records it and infers shapes; what it computes is
written in its docstring (one file per family of ops) and, as running code, in
`reference_ops.py`. Ops are as coarse as the fastest backend's fusions, so that
a backend maps one op to one kernel.

Two rules hold for every op (batch invariance):
* a row's result depends on that row alone: reductions run in an order that
  knows neither the number of rows, nor the row's index, nor the thread count;
* rows past the live count of a counted Dim are neither read nor written.

Notation: T rows (tokens), H hidden, D head_dim, round = half to even.
`quantised row`: scale = max(max|x|, EPS) / 127, q = clamp(round(x / scale), +-127).
"""

from qwen3_a8w8.kernels.ops.cache import KvCache
from qwen3_a8w8.kernels.ops.linear import LinearWeight
from qwen3_a8w8.kernels.ops.op_set import Ops
from qwen3_a8w8.kernels.ops.rows import QUANT_EPS
from qwen3_a8w8.kernels.ops.sampling import SAMPLE_CONTROLS

__all__ = ["QUANT_EPS", "SAMPLE_CONTROLS", "KvCache", "LinearWeight", "Ops"]
