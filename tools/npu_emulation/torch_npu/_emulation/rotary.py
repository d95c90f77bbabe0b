"""Kernels of rotary position embeddings, by halves."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu._emulation.definitions import kernel
from torch_npu._emulation.refusals import OpContract
from torch_npu._emulation.rows import FLOATS, varied


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x * cos + (-second half, first half) * sin, in float32."""
    x = x.float()
    first, second = x.chunk(2, dim=-1)
    return x * cos.float() + torch.cat((-second, first), dim=-1) * sin.float()


@kernel("npu_apply_rotary_pos_emb")
def npu_apply_rotary_pos_emb(
    query: Tensor,
    key: Tensor,
    cos: Tensor,
    sin: Tensor,
    layout: str = "BSND",
    rotary_mode: str = "half",
) -> tuple[Tensor, Tensor]:
    """In place, though its schema doesn't say so; "BSH" is the old name of BSND.

    Source: document "torch_npu.npu_apply_rotary_pos_emb", constraints of Atlas A2/A3.
    """
    check = OpContract("npu_apply_rotary_pos_emb")
    check.require(layout in ("BSND", "BSH", "TND"), f"layout {layout!r} isn't supported")
    check.require(rotary_mode == "half", f"rotary_mode {rotary_mode!r} isn't supported")
    check.dtype("query", query, FLOATS)
    num_dims = 3 if layout == "TND" else 4
    tensors = {"query": query, "key": key, "cos": cos, "sin": sin}
    for name, tensor in tensors.items():
        check.dtype(name, tensor, (query.dtype,))
        check.require(tensor.dim() == num_dims, f"{name} has {tensor.dim()} dims, not {num_dims}")
        check.require(
            tensor.shape[-1] in (64, 128), f"D of {name} is {tensor.shape[-1]}, not 64 or 128"
        )
        check.require(
            tensor.shape[:-2] == query.shape[:-2], f"{name} has other leading dims than query"
        )
    check.not_empty(**tensors)
    check.plain(**tensors)
    check.contiguous(**tensors)
    check.require(query.shape[-1] == key.shape[-1], "query and key have different D")
    check.require(cos.shape[-2] == 1 and sin.shape[-2] == 1, "cos and sin need N = 1")
    check.require(cos.shape[-1] == query.shape[-1], "partial rotation isn't emulated")
    for tensor in (query, key):
        turned = varied("npu_apply_rotary_pos_emb", rotated(tensor, cos, sin), tensor.shape[0])
        tensor.copy_(turned)
    # Fresh handles on the same memory: an op may not return its inputs.
    return query.view(query.shape), key.view(key.shape)


@kernel("npu_rotary_mul")
def npu_rotary_mul(
    self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    """Source: document "torch_npu.npu_rotary_mul", mode half."""
    check = OpContract("npu_rotary_mul")
    check.require(rotary_mode == "half", f"rotary_mode {rotary_mode!r} isn't emulated")
    check.require(rotate is None, "rotate isn't emulated")
    check.require(self.dim() in (3, 4), f"input has {self.dim()} dims, 3 or 4 are supported")
    for name, tensor in (("input", self), ("r1", r1), ("r2", r2)):
        check.dtype(name, tensor, FLOATS)
        check.require(tensor.dim() == self.dim(), f"{name} has {tensor.dim()} dims")
    d = self.shape[-1]
    check.require(d % 2 == 0 and d < 896, f"D is {d}; it must be even and under 896")
    if self.dim() == 4:
        check.require(
            self.shape[0] < 1000 and self.shape[2] < 1000,
            f"B and N must be under 1000, the input has shape {tuple(self.shape)}",
        )
    elif self.dim() == 3:
        check.require(r1.shape[0] == self.shape[0], "r1 needs the input's T")
        check.require(r1.shape[1] in (1, self.shape[1]), "r1 needs N = 1 or the input's N")
    check.require(r1.shape == r2.shape, "r1 and r2 have different shapes")
    check.plain(input=self, r1=r1, r2=r2)
    return varied("npu_rotary_mul", rotated(self, r1, r2), self.shape[0]).to(self.dtype)


@kernel("npu_mrope")
def npu_mrope(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    *,
    mrope_section: list[int] | None = None,
    rotary_mode: str | None = "half",
    cache_mode: str | None = "default",
) -> tuple[Tensor, Tensor]:
    """Source: document "torch_npu.npu_mrope", RoPE mode (one position per token)."""
    check = OpContract("npu_mrope")
    check.require(not mrope_section or not any(mrope_section), "mrope_section isn't emulated")
    check.require(rotary_mode == "half", f"rotary_mode {rotary_mode!r} isn't emulated")
    check.require(cache_mode in (None, "default"), f"cache_mode {cache_mode!r} isn't emulated")
    check.dtype("positions", positions, (torch.int32, torch.int64))
    check.require(positions.dim() == 1, f"positions have {positions.dim()} dims, not 1")
    check.dtype("query", query, FLOATS)
    multiple = 16 if query.dtype == torch.float32 else 32
    num_tokens, rotary_dim = positions.shape[0], cos_sin_cache.shape[-1]
    for name, tensor in (("query", query), ("key", key), ("cos_sin_cache", cos_sin_cache)):
        check.dtype(name, tensor, (query.dtype,))
        check.require(tensor.dim() == 2, f"{name} has {tensor.dim()} dims, not 2")
    for name, tensor in (("query", query), ("key", key)):
        check.require(tensor.shape[0] == num_tokens, f"{name} has {tensor.shape[0]} tokens")
        check.require(tensor.shape[1] % head_size == 0, f"{name} isn't made of heads")
    check.require(head_size % multiple == 0, f"head_size must be a multiple of {multiple}")
    check.require(rotary_dim == head_size, "partial rotation isn't emulated")
    check.plain(query=query, key=key)
    check.require(
        int(positions.min()) >= 0 and int(positions.max()) < cos_sin_cache.shape[0],
        f"positions reach {int(positions.max())}, the table has {cos_sin_cache.shape[0]} rows",
    )
    half = cos_sin_cache[positions.long()].unsqueeze(1)  # [T, 1, D], half cosines, half sines
    cos, sin = (part.repeat(1, 1, 2) for part in half.chunk(2, dim=-1))
    outputs = []
    for tensor in (query, key):
        heads = tensor.reshape(num_tokens, -1, head_size)
        turned = varied("npu_mrope", rotated(heads, cos, sin), num_tokens)
        outputs.append(turned.reshape(tensor.shape).to(tensor.dtype))
    return outputs[0], outputs[1]
