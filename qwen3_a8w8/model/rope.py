"""The rotary table: cosines and sines of every position, computed once on the host."""

from __future__ import annotations

import torch
from torch import Tensor

from qwen3_a8w8.rope_scaling import YarnScaling, rotary_frequencies


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
        [D/2, D) the sines.  Source: see `rotary_frequencies`.
    """
    frequencies, scale = rotary_frequencies(head_dim, theta, yarn)
    positions = torch.arange(num_positions, dtype=torch.float64)
    angles = torch.outer(positions, torch.tensor(frequencies, dtype=torch.float64))
    return (torch.cat((angles.cos(), angles.sin()), dim=1) * scale).float()
