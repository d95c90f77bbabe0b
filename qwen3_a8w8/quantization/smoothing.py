"""SmoothQuant: moves outliers of activations into the weights that they are multiplied with.

Channel j of a norm's output is divided by s_j, and column j of the linears that
read it is multiplied by s_j; in exact arithmetic nothing changes, but both are
then easier to quantise. Source: Xiao et al. 2022, "SmoothQuant", eq. 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ALPHA = 0.5
"""Share of the outliers' magnitude that moves into the weights."""

_FLOOR = 1e-5


def smoothing_scales(
    x_absmax: Tensor, weights: Sequence[Tensor], norm: Tensor, *, alpha: float = ALPHA
) -> tuple[Tensor, Tensor]:
    """Finds scales and the norm's new weight.

    Args:
        x_absmax: `[in]` float32, largest magnitude of each channel on calibration data.
        weights: the linears that read the norm, `[out, in]` float32.
        norm: `[in]`, the norm's weight, in the dtype in which it will be stored.
        alpha: see `ALPHA`.

    Returns:
        `norm` with its channels divided, in its dtype, and the exact factors `[in]` float32 by
        which the columns of the weights must be multiplied: they compensate the rounding of
        the norm.
    """
    w_absmax = torch.stack([weight.abs().amax(dim=0) for weight in weights]).amax(dim=0)
    scales = x_absmax.clamp_min(_FLOOR) ** alpha / w_absmax.clamp_min(_FLOOR) ** (1 - alpha)
    scales = scales.clamp(_FLOOR, 1 / _FLOOR)
    smoothed = (norm.float() / scales).to(norm.dtype)
    is_nonzero = smoothed.float() != 0
    factors = torch.where(is_nonzero, norm.float() / smoothed.float(), torch.ones_like(scales))
    smoothed = torch.where(is_nonzero, smoothed, norm)
    return smoothed, factors
