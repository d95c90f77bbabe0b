"""GPTQ for int8 with one scale per output channel: rounding with error compensation.

Columns are rounded one after the other; the error of a column is distributed to the
columns that aren't rounded yet, so that the layer's output on the calibration data
changes least. Source: Frantar et al. 2022, "GPTQ", algorithm 1 (columns in
their own order, no act-order).
"""

from __future__ import annotations

import torch
from torch import Tensor

from qwen3_a8w8.quantization.int8 import INT8_MAX

DAMPING = 0.01
"""Added to the diagonal, as a share of its mean, so that the inverse exists."""

_BLOCK = 128
_TILE = 1024
"""Tile size of the factorisation: most work is matrix products, and memory stays small."""


def inverse_factor(hessian: Tensor, *, damping: float = DAMPING, tile: int = _TILE) -> Tensor:
    """Prepares the Hessian of an input for `gptq_quantize`; linears that share the input share it.

    The upper Cholesky factor U of the inverse (H^-1 = U^T U) is the inverse of the upper factor R
    with H = R R^T, so that the inverse of H itself is never needed. R and U are computed in
    place, tile by tile: a Hessian of 17408 inputs takes 1.2 GB and isn't copied.

    Args:
        hessian: `[in, in]` float32, sum of x^T x over calibration tokens; becomes the result.
        damping: see `DAMPING`.
        tile: tile size; changes the result only by rounding.

    Returns:
        U, `[in, in]` float32; zero below its diagonal.

    Raises:
        ValueError: the Hessian isn't positive definite even with damping.
    """
    diagonal = hessian.diagonal()
    # Inputs that never occurred: any value works, there is no error to compensate.
    diagonal[diagonal == 0] = 1.0
    diagonal += damping * diagonal.mean()
    num_in = hessian.shape[0]
    spans = [slice(a, min(a + tile, num_in)) for a in range(0, num_in, tile)]
    _factor_from_the_end(hessian, spans)
    _invert_upper(hessian, spans)
    return hessian


def _factor_from_the_end(matrix: Tensor, spans: list[slice]) -> None:
    """H -> R, upper, with H = R R^T; from the last tile to the first."""
    for k in reversed(range(len(spans))):
        span, done = spans[k], spans[:k]
        # A Cholesky factorisation from the last row is one of the reversed matrix.
        lower, info = torch.linalg.cholesky_ex(matrix[span, span].flip(0, 1))
        if int(info) != 0:
            raise ValueError(
                "the Hessian of the calibration data isn't positive definite; use more data or "
                "more damping"
            )
        corner = lower.flip(0, 1)
        matrix[span, span] = corner
        matrix[span, : span.start] = 0
        for above in done:
            # X with X R_kk^T = H_ik.
            matrix[above, span] = torch.linalg.solve_triangular(
                corner.T, matrix[above, span], upper=False, left=False
            )
        for i, above in enumerate(done):
            for beside in done[i:]:
                matrix[above, beside].addmm_(matrix[above, span], matrix[beside, span].T, alpha=-1)


def _invert_upper(matrix: Tensor, spans: list[slice]) -> None:
    """R -> R^-1, both upper; column of tiles by column of tiles."""
    for k, span in enumerate(spans):
        eye = torch.eye(span.stop - span.start)
        corner = torch.linalg.solve_triangular(matrix[span, span], eye, upper=True)
        column = matrix[: span.start, span] @ -corner
        for above in spans[:k]:
            # The tiles before the diagonal hold the inverse already, those below it are zero.
            matrix[above, span] = matrix[above, above.start : span.start] @ column[above.start :]
        matrix[span, span] = corner


def gptq_quantize(weight: Tensor, w_scale: Tensor, factor: Tensor) -> Tensor:
    """Rounds a weight to its scales with error compensation.

    Args:
        weight: `[out, in]` float32; unchanged.
        w_scale: `[out]` float32, positive.
        factor: `[in, in]`, see `inverse_factor`.

    Returns:
        `w_q` `[out, in]` int8 in -127..127.
    """
    work = weight.clone()
    num_out, num_in = weight.shape
    w_q = torch.empty((num_out, num_in), dtype=torch.int8)
    for start in range(0, num_in, _BLOCK):
        end = min(start + _BLOCK, num_in)
        # Columns as rows, so that each is contiguous.
        columns = work[:, start:end].T.contiguous()
        rounded = torch.empty((end - start, num_out), dtype=torch.int8)
        errors = torch.empty_like(columns)
        for i in range(end - start):
            row = factor[start + i, start + i : end]
            q = torch.round(columns[i] / w_scale).clamp_(-INT8_MAX, INT8_MAX)
            rounded[i] = q.to(torch.int8)
            errors[i] = (columns[i] - q * w_scale) / row[0]
            columns[i + 1 :].addr_(row[1:], errors[i], alpha=-1)
        w_q[:, start:end] = rounded.T
        work[:, end:].addmm_(errors.T, factor[start:end, end:], alpha=-1)
    return w_q
