"""Data and formulas that several of these tests use."""

import numpy as np
import torch

BF16 = torch.bfloat16
EPS_BF16 = 2.0**-8
"""Relative error of one rounding to bfloat16."""


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random(*shape, dtype=BF16, seed=0):
    return torch.randn(*shape, generator=generator(seed)).to(dtype)


def int8s(*shape, seed=0):
    return torch.randint(-128, 128, shape, generator=generator(seed), dtype=torch.int8)


def f64(tensor):
    return tensor.double().numpy()


def attention(q, k, v, scale):
    """Softmax attention of one query over its keys, in float64: q [D], k, v [n, D]."""
    scores = scale * (k @ q)
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ v
