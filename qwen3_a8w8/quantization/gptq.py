"""GPTQ for int8 with one scale per output channel: rounding that makes up for its own errors.

Columns are rounded one after the other; what a column loses is spread over the
columns that aren't rounded yet, so that the layer's output on the calibration
data changes least. Source: Frantar et al. 2022, "GPTQ", algorithm 1 (columns in
their own order, no act-order).
"""

from __future__ import annotations

import torch
from torch import Tensor

from qwen3_a8w8.quantization.int8 import INT8_MAX

DAMPING = 0.01
"""Added to the diagonal, as a share of its mean, so that the inverse exists."""

_BLOCK = 128


def inverse_factor(hessian: Tensor, *, damping: float = DAMPING) -> Tensor:
    """Prepares the Hessian of an input for `gptq_quantize`; linears that share it share this.

    Args:
        hessian: `[in, in]` float32, sum of x^T x over calibration tokens; overwritten.
        damping: see `DAMPING`.

    Returns:
        The upper Cholesky factor of the damped Hessian's inverse, `[in, in]` float32.

    Raises:
        ValueError: the Hessian isn't positive definite even with damping.
    """
    diagonal = hessian.diagonal()
    # Inputs that never occurred: any value does, and nothing has to be made up for.
    diagonal[diagonal == 0] = 1.0
    diagonal += damping * diagonal.mean()
    lower, info = torch.linalg.cholesky_ex(hessian)
    if int(info) != 0:
        raise ValueError(
            "the Hessian of the calibration data isn't positive definite; use more data or more "
            "damping"
        )
    inverse = torch.cholesky_inverse(lower)
    del lower
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor


def gptq_quantize(weight: Tensor, w_scale: Tensor, factor: Tensor) -> Tensor:
    """Rounds a weight to its scales with error compensation.

    Args:
        weight: `[out, in]` float32; left as it is.
        w_scale: `[out]` float32, positive.
        factor: `[in, in]`, see `inverse_factor`.

    Returns:
        `w_q` `[out, in]` int8 in -127..127.
    """
    work = weight.clone()
    w_q = torch.empty(weight.shape, dtype=torch.int8)
    num_in = weight.shape[1]
    for begin in range(0, num_in, _BLOCK):
        end = min(begin + _BLOCK, num_in)
        columns = work[:, begin:end]
        errors = torch.empty_like(columns)
        for i in range(end - begin):
            row = factor[begin + i, begin + i : end]
            q = torch.round(columns[:, i] / w_scale).clamp_(-INT8_MAX, INT8_MAX)
            w_q[:, begin + i] = q.to(torch.int8)
            error = (columns[:, i] - q * w_scale) / row[0]
            columns[:, i:] -= torch.outer(error, row)
            errors[:, i] = error
        work[:, end:] -= errors @ factor[begin:end, end:]
    return w_q
