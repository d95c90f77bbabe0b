"""The rotary table: cosines and sines of every position, computed once on the host."""

from __future__ import annotations

import torch
from torch import Tensor

from qwen3_a8w8.rope_scaling import YarnScaling


def rope_table(
    num_positions: int, head_dim: int, theta: float, yarn: YarnScaling | None = None
) -> Tensor:
    """Cosines and sines of the rotary embedding.

    Angles are computed in float64: at position 40,000 a float32 product is off by up to
    0.002 radians.

    Args:
        num_positions: rows of the table.
        head_dim: D, even.
        theta: base.
        yarn: stretches the frequencies and scales the whole table.

    Returns:
        [num_positions, D] float32; columns [0, D/2) are cos(p * theta^(-2i/D)), columns
        [D/2, D) the sines.  Source: Su et al. 2021, "RoFormer", section 3.4.2.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    positions = torch.arange(num_positions, dtype=torch.float64)
    frequencies, scale = theta**-exponents, 1.0
    if yarn is not None:
        low, high = yarn.ramp(head_dim, theta)
        indices = torch.arange(head_dim // 2, dtype=torch.float64)
        stretched = ((indices - low) / (high - low)).clamp(0, 1)
        frequencies = frequencies * (1 - stretched + stretched / yarn.factor)
        scale = yarn.attention_factor
    angles = torch.outer(positions, frequencies)
    return (torch.cat((angles.cos(), angles.sin()), dim=1) * scale).float()
