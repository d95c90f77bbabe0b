"""Symmetric int8 quantisation in torch, exact: the reference rule for every kernel.

One rule for weights and activations: `scale = max(absmax, EPS) / 127`,
`q = clamp(round_half_to_even(x / scale), -127, 127)`, all in float32. A scheme
defines which values share a scale.

This module doesn't know about files, layers or kernels.
"""

from __future__ import annotations

import torch

INT8_MAX = 127
"""Largest magnitude written by our quantiser; -128 is never produced (but may be read)."""

SCALE_SEARCHES = ("absmax", "mse")
"""Ways to choose a weight's scales."""

EPS = 1e-10
"""Floor of absmax. Keeps an all-zero row at q = 0 with a finite, non-zero scale: EPS / 127 is
a normal float32, and so is its reciprocal."""

_BLOCK_ELEMENTS = 32_000
"""Below the size at which torch splits an operation among threads, which could make it wait."""

_ROUNDER = 1.5 * 2**23
"""In float32, adding this leaves no bits for a fraction, so that the sum is rounded to an integer
(half to even, by IEEE 754); subtracting it is exact. Valid for magnitudes below 2**22."""


def _scale_of_rows(rows: torch.Tensor) -> torch.Tensor:
    absmax = rows.abs().amax(dim=-1)
    return absmax.clamp_min(EPS) / INT8_MAX


def _quantize_rows(rows: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    # Divide, don't multiply by the reciprocal: the two differ at ties.
    quotient = (rows / scale.unsqueeze(-1)).clamp_(-INT8_MAX, INT8_MAX)
    # Rounds half to even, like torch.round, which splits even tiny inputs among threads and
    # stalls for milliseconds when another process uses a core.
    return quotient.add_(_ROUNDER).sub_(_ROUNDER).to(torch.int8)


def _representable_scale(scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounds `scale` to `dtype`, upwards only where rounding down would clip.

    A scale rounded down makes absmax / scale exceed 127. Up to 127.5 that still rounds to 127
    and costs no more than half a step; beyond it (float16 subnormals, and anything that
    underflows to zero) the next larger number is used.
    """
    if dtype == torch.float32:
        return scale
    rounded = scale.to(dtype)
    clips = rounded.float() * (INT8_MAX + 0.5) < scale * INT8_MAX
    # Adding one to the bits of a positive float gives the next one up.
    next_up = (rounded.view(torch.int16) + 1).view(dtype)
    return torch.where(clips, next_up, rounded).float()


def quantize_weight(
    weight: torch.Tensor, *, scale_dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises a weight with one scale per output channel.

    Args:
        weight: `[out, in]`, any float dtype, finite.
        scale_dtype: dtype in which the scales will be stored (float32, bfloat16 or float16).
            They are rounded to it before use, so that `w_q * w_scale` is consistent
            with what a reader of the stored scales gets.

    Returns:
        `w_q` `[out, in]` int8 in -127..127 and `w_scale` `[out]` float32, always positive and
        finite. Every element is reproduced within `w_scale / 2` (plus rounding in float32).

    Raises:
        ValueError: the weight isn't a matrix, or isn't finite (quantising it would hide damage).
    """
    if weight.ndim != 2:
        raise ValueError(f"weight has shape {tuple(weight.shape)}, expected [out, in]")
    num_out, num_in = weight.shape
    w_q = torch.empty((num_out, num_in), dtype=torch.int8)
    w_scale = torch.empty(num_out, dtype=torch.float32)
    # In blocks of rows, so that the float32 copies stay in cache and never add up to a second
    # copy of a large weight. Rows are independent: the blocks don't change the result.
    block = max(1, _BLOCK_ELEMENTS // num_in)
    for start in range(0, num_out, block):
        rows = weight[start : start + block].float()
        scale = _scale_of_rows(rows)
        finite = torch.isfinite(scale)
        if not bool(finite.all()):
            channel = start + int((~finite).nonzero()[0])
            raise ValueError(f"output channel {channel} has NaN or infinity")
        scale = _representable_scale(scale, scale_dtype)
        w_scale[start : start + block] = scale
        w_q[start : start + block] = _quantize_rows(rows, scale)
    return w_q, w_scale


def search_weight_scale(
    weight: torch.Tensor, *, search: str, scale_dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Finds one scale per output channel.

    Args:
        weight: `[out, in]`, any float dtype, finite.
        search: "absmax", the rule of `quantize_weight`; or "mse", the scale from 80 % to 100 %
            of that with the smallest squared error (clipping a few large weights may help).
        scale_dtype: dtype in which the scales will be stored.

    Returns:
        `[out]` float32, positive, representable in `scale_dtype`.

    Raises:
        ValueError: another `search`.
    """
    if search not in SCALE_SEARCHES:
        raise ValueError(f"scale search is {search!r}, expected one of {SCALE_SEARCHES}")
    scales = torch.empty(weight.shape[0], dtype=torch.float32)
    block = max(1, _BLOCK_ELEMENTS // weight.shape[1])
    shrinks = [1.0] if search == "absmax" else [1.0 - 0.01 * step for step in range(21)]
    for start in range(0, weight.shape[0], block):
        rows = weight[start : start + block].float()
        full = _scale_of_rows(rows)
        best = _representable_scale(full, scale_dtype)
        smallest = torch.full_like(full, float("inf"))
        for shrink in shrinks:
            scale = _representable_scale(full * shrink, scale_dtype)
            q = (rows / scale.unsqueeze(-1)).round_().clamp_(-INT8_MAX, INT8_MAX)
            error = (q * scale.unsqueeze(-1) - rows).square_().sum(dim=-1)
            best = torch.where(error < smallest, scale, best)
            smallest = torch.minimum(error, smallest)
        scales[start : start + block] = best
    return scales


def round_to_scale(weight: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    """Rounds a weight to given scales.

    Args:
        weight: `[out, in]`, any float dtype, finite.
        w_scale: `[out]` float32, positive.

    Returns:
        `[out, in]` int8 in -127..127.
    """
    w_q = torch.empty(weight.shape, dtype=torch.int8)
    block = max(1, _BLOCK_ELEMENTS // weight.shape[1])
    for start in range(0, weight.shape[0], block):
        rows = slice(start, start + block)
        w_q[rows] = _quantize_rows(weight[rows].float(), w_scale[rows])
    return w_q


def fold_zero_point(
    w_q: torch.Tensor, w_scale: torch.Tensor, zero_point: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turns an asymmetric weight `(w_q - zero_point) * w_scale` into a symmetric one.

    If all of a channel's `w_q - zero_point` fit int8, they are the result, which is exact. Other
    channels are requantised from their exact values: every weight is then off by at most half a
    new step, and a new step is at most 255 / 127 old ones (with zero points near 0, as in real
    weights, hardly more than one).

    Args:
        w_q: `[out, in]` int8.
        w_scale: `[out]` float32, positive.
        zero_point: `[out]` integer, -128..127.

    Returns:
        `w_q` `[out, in]` int8 and `w_scale` `[out]` float32.
    """
    num_out, num_in = w_q.shape
    new_q = torch.empty((num_out, num_in), dtype=torch.int8)
    new_scale = w_scale.float().clone()
    block = max(1, _BLOCK_ELEMENTS // max(1, num_in))
    for start in range(0, num_out, block):
        rows = slice(start, start + block)
        shifted = w_q[rows].to(torch.int16) - zero_point[rows].to(torch.int16).unsqueeze(-1)
        low, high = torch.aminmax(shifted, dim=-1)
        fits = (low >= -INT8_MAX - 1) & (high <= INT8_MAX)
        exact = shifted.clamp(-INT8_MAX - 1, INT8_MAX).to(torch.int8)
        # Through float32: products of a scale and a number below 2**8 are rounded once.
        again, scale = quantize_weight(shifted.float() * new_scale[rows].unsqueeze(-1))
        new_q[rows] = torch.where(fits.unsqueeze(-1), exact, again)
        new_scale[rows] = torch.where(fits, new_scale[rows], scale)
    return new_q, new_scale


def quantize_activation(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises activations with one scale per token.

    Args:
        x: `[..., width]`, any float dtype, finite.

    Returns:
        `x_q` `[..., width]` int8 in -127..127 and `x_scale` `[...]` float32, positive.
        For values that aren't finite the result is unspecified.
    """
    rows = x.float()
    scale = _scale_of_rows(rows)
    return _quantize_rows(rows, scale), scale


def dequantize(
    q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Computes `q * scale` with one scale per slice along the last dimension of `q`.

    Works for both schemes: `[out, in]` with `[out]`, and `[..., width]` with `[...]`.

    Args:
        q: int8 `[..., width]`.
        scale: float `[...]`.
        dtype: dtype of the result; the product is taken in float32 and rounded once.

    Returns:
        `[..., width]` of `dtype`.

    Raises:
        ValueError: the shape of the scale isn't that of `q` without its last dimension.
    """
    if scale.shape != q.shape[:-1]:
        raise ValueError(
            f"scale has shape {tuple(scale.shape)}, expected {tuple(q.shape[:-1])} "
            f"for values of shape {tuple(q.shape)}"
        )
    return (q.float() * scale.float().unsqueeze(-1)).to(dtype)
