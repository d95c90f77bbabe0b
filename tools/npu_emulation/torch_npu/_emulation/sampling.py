"""Kernels of sampling."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_npu._emulation.definitions import kernel
from torch_npu._emulation.refusals import OpContract
from torch_npu._emulation.rows import FLOATS, varied


@kernel("npu_top_k_top_p")
def npu_top_k_top_p(logits: Tensor, p: Tensor | None = None, k: Tensor | None = None) -> Tensor:
    """Source: document "torch_npu.npu_top_k_top_p": what is filtered out becomes -inf."""
    check = OpContract("npu_top_k_top_p")
    check.dtype("logits", logits, FLOATS)
    check.require(logits.dim() == 2, f"logits have {logits.dim()} dims, not 2")
    check.plain(logits=logits)
    batch, vocab = logits.shape
    values, order = torch.sort(logits.float(), dim=-1, stable=True)
    if k is not None:
        check.dtype("k", k, (torch.int32,))
        check.shape("k", k, (batch,))
        limit = min(1024, vocab)
        check.require(
            int(k.min()) >= 1 and int(k.max()) <= limit, f"k is outside of [1, {limit}]: {k}"
        )
        threshold = values.gather(1, (vocab - k.long()).unsqueeze(1))
        values = values.masked_fill(values < threshold, -math.inf)
    if p is not None:
        check.dtype("p", p, (logits.dtype,))
        check.shape("p", p, (batch,))
        check.require(float(p.min()) >= 0 and float(p.max()) <= 1, f"p is outside of [0, 1]: {p}")
        below = torch.softmax(values, dim=-1).cumsum(dim=-1) <= 1 - p.float().unsqueeze(1)
        below[:, -1] = False
        values = values.masked_fill(below, -math.inf)
    out = torch.empty_like(values).scatter_(1, order, values)
    return varied("npu_top_k_top_p", out, batch).to(logits.dtype)
