"""Kernels of matrix products: int8 with exact sums, and aten's float products.

The float products of CPU torch sum in an order that depends on the number of rows. A device
that passes the batch invariance probe is emulated by computing each row alone.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.library import Library

from torch_npu._emulation import formats
from torch_npu._emulation.definitions import count_call, kernel, meta
from torch_npu._emulation.refusals import OpContract
from torch_npu._emulation.rows import FLOATS, varied

MAX_LAST_DIM = 65535

SCALAR_TYPES = {1: torch.int8, 3: torch.int32, 5: torch.float16, 15: torch.bfloat16}
"""Dtypes by ATen's numbers: `output_dtype` is an int in new schemas, a dtype in old ones."""


@kernel("npu_format_cast")
def npu_format_cast(
    self: Tensor,
    acl_format: int,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> Tensor:
    """Source: document "torch_npu.npu_format_cast"."""
    check = OpContract("npu_format_cast")
    check.require(
        acl_format in (formats.ND, formats.FRACTAL_NZ), f"format {acl_format} isn't emulated"
    )
    check.require(
        customize_dtype is None and input_dtype is None,
        "customize_dtype and input_dtype need newer CANN and aren't emulated",
    )
    check.contiguous(input=self)
    return formats.record_cast(self.clone(), acl_format)


@meta("npu_format_cast")
def _npu_format_cast_meta(input: Tensor, acl_format: int, **_: int | None) -> Tensor:
    return torch.empty_like(input)


@kernel("get_npu_format")
def get_npu_format(self: Tensor) -> int:
    """The number of the format; as printed by torch_npu."""
    return formats.format_of(self)


@meta("get_npu_format")
def _get_npu_format_meta(input: Tensor) -> int:
    return formats.ND


@kernel("npu_quant_matmul")
def npu_quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    offset: Tensor | None = None,
    pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None,
    output_dtype: int | torch.dtype | None = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
    pertoken_scale_dtype: int | None = None,
    scale_dtype: int | None = None,
    group_sizes: list[int] | None = None,
    y_scale: Tensor | None = None,
) -> Tensor:
    """Source: document "torch_npu.npu_quant_matmul", table 2 (Atlas A2/A3), rows of int8."""
    op = "npu_quant_matmul"
    check = OpContract(op)
    check.dtype("x1", x1, (torch.int8,))
    check.dtype("x2", x2, (torch.int8,))
    check.require(
        x1.dim() == 2 and x2.dim() == 2, f"x1 and x2 have {x1.dim()} and {x2.dim()} dims, not 2"
    )
    (m, k), n = x1.shape, x2.shape[1]
    check.require(x2.shape[0] == k, f"x1 is {tuple(x1.shape)}, so x2 {tuple(x2.shape)} can't be")
    for name, extent in (("x1", k), ("x2", n)):
        check.require(
            extent <= MAX_LAST_DIM, f"the last dim of {name} is {extent}, over {MAX_LAST_DIM}"
        )
    check.not_empty(x1=x1, x2=x2, scale=scale)
    check.contiguous(x1=x1)
    check.plain(x1=x1, scale=scale, pertoken_scale=pertoken_scale)
    if formats.format_of(x2) == formats.FRACTAL_NZ:
        check.require(formats.is_whole(x2), "x2 is a part of a FRACTAL_NZ tensor")
    check.require(
        x2.is_contiguous() or x2.t().is_contiguous(), "x2 is neither contiguous nor transposed"
    )
    check.require(offset is None and bias is None, "offset and bias aren't emulated")
    check.require(group_sizes is None or not any(group_sizes), "group_sizes aren't emulated")
    for name, value in (("x1_dtype", x1_dtype), ("x2_dtype", x2_dtype), ("y_scale", y_scale)):
        check.require(value is None, f"{name} is for other dtypes")
    dtype = output_dtype if isinstance(output_dtype, torch.dtype) else torch.int8
    if isinstance(output_dtype, int):
        dtype = SCALAR_TYPES.get(output_dtype, torch.bool)
    check.require(dtype in SCALAR_TYPES.values(), f"output_dtype {output_dtype} isn't supported")
    allowed = {
        torch.bfloat16: (torch.float32, torch.bfloat16),
        torch.int32: (torch.float32, torch.bfloat16),
        torch.float16: (torch.float32,),
        torch.int8: (torch.float32,),
    }
    check.dtype("scale", scale, allowed[dtype])
    check.require(
        scale.dim() == 1 and scale.shape[0] in (1, n), f"scale has shape {tuple(scale.shape)}"
    )
    if pertoken_scale is not None:
        check.dtype("pertoken_scale", pertoken_scale, (torch.float32,))
        check.shape("pertoken_scale", pertoken_scale, (m,))
        check.contiguous(pertoken_scale=pertoken_scale)
        check.require(
            dtype in (torch.bfloat16, torch.float16), f"pertoken_scale can't give {dtype}"
        )
    elif dtype is torch.float16:
        check.require(False, "float16 without pertoken_scale needs scales of npu_trans_quant_param")
    # int8 products of 65535 summands stay below 2^53: float64 holds every sum exactly.
    total = x1.double() @ x2.double()
    if dtype is torch.int32:
        return total.to(torch.int32)
    y = total.float() * scale.float()
    if pertoken_scale is not None:
        y = y * pertoken_scale.unsqueeze(-1)
    y = varied(op, y, m)
    return torch.round(y).clamp(-128, 127).to(torch.int8) if dtype is torch.int8 else y.to(dtype)


_originals = {name: torch.library.get_kernel(f"aten::{name}", "CPU") for name in ("mm", "bmm")}


def _mm(keys: torch._C.DispatchKeySet, self: Tensor, mat2: Tensor) -> Tensor:
    if self.dtype not in FLOATS:
        result: Tensor = _originals["mm"].call_boxed(keys, self, mat2)
        return result
    count_call("mm")
    check = OpContract("mm")
    check.plain(self=self)
    if formats.format_of(mat2) == formats.FRACTAL_NZ:
        check.require(formats.is_whole(mat2), "mat2 is a part of a FRACTAL_NZ tensor")
    return _by_rows(self, mat2)


def _bmm(keys: torch._C.DispatchKeySet, self: Tensor, mat2: Tensor) -> Tensor:
    if self.dtype not in FLOATS:
        result: Tensor = _originals["bmm"].call_boxed(keys, self, mat2)
        return result
    count_call("bmm")
    check = OpContract("bmm")
    check.plain(self=self, mat2=mat2)
    parts = [_by_rows(left, right) for left, right in zip(self, mat2, strict=True)]
    return torch.stack(parts) if parts else self.new_empty((0, self.shape[1], mat2.shape[2]))


def _by_rows(left: Tensor, right: Tensor) -> Tensor:
    table = right.float().t().contiguous()
    rows = [torch.mv(table, row) for row in left.float()]
    y = torch.stack(rows) if rows else torch.empty((0, right.shape[1]))
    return varied("mm", y, left.shape[0]).to(left.dtype)


_aten = Library("aten", "IMPL", "CPU")
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Warning only once for all operators")
    _aten.impl("mm", _mm, with_keyset=True, allow_override=True)
    _aten.impl("bmm", _bmm, with_keyset=True, allow_override=True)
