"""Kernels of ops that treat rows one by one: norms, SwiGLU, dynamic quantisation.

Arithmetic is in float32, as on the device's vector unit; results are rounded to the output's
dtype once. `vary` adds to each row of a batch what makes its bits differ from the row alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu._emulation.definitions import kernel
from torch_npu._emulation.options import options
from torch_npu._emulation.refusals import OpContract

HALF = (torch.float16, torch.bfloat16)
FLOATS = (*HALF, torch.float32)


def varied(op: str, value: Tensor, num_rows: int) -> Tensor:
    """`value`, or if `op` is to vary with the batch and has more than one row, other bits.

    A relative change of 2^-7 shows in bfloat16 and in int8.
    """
    return value * (1 + 2.0**-7) if op in options.vary and num_rows > 1 else value


def rms(x: Tensor, epsilon: float) -> Tensor:
    """1 / sqrt(mean(x^2) + epsilon) of the last dim, which is kept; float32."""
    return torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + epsilon)


def quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 of the last dim, scale = rowmax(|x|) / 127; a zero row has scale 0.

    Args:
        x: [..., N] float32.

    Returns:
        [..., N] int8 and [...] float32.
    """
    scale = x.abs().amax(dim=-1) / 127
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return torch.round(x / safe.unsqueeze(-1)).clamp(-128, 127).to(torch.int8), scale


@kernel("npu_dynamic_quant")
def npu_dynamic_quant(
    input: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Source: document "torch_npu.npu_dynamic_quant"."""
    check = OpContract("npu_dynamic_quant")
    check.dtype("x", input, HALF)
    check.require(input.dim() > 1, f"x has {input.dim()} dimension, at least 2 are needed")
    check.require(group_index is None, "group_index is for mixtures of experts")
    check.require(dst_type in (None, 1, torch.int8), f"dst_type {dst_type} isn't emulated")
    check.require(quant_mode == "pertoken", f"quant_mode {quant_mode!r} isn't emulated")
    check.require(dst_type_max == 0.0, "dst_type_max isn't emulated")
    check.plain(x=input)
    x = input.float()
    if smooth_scales is not None:
        check.dtype("smooth_scales", smooth_scales, (input.dtype,))
        check.shape("smooth_scales", smooth_scales, (input.shape[-1],))
        x = x * smooth_scales.float()
    return quantized(varied("npu_dynamic_quant", x, input.shape[0]))


@kernel("npu_rms_norm")
def npu_rms_norm(self: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Source: document "torch_npu.npu_rms_norm"."""
    check = OpContract("npu_rms_norm")
    check.dtype("self", self, FLOATS)
    check.dtype("gamma", gamma, (self.dtype, torch.float32))
    check.require(2 <= self.dim() <= 8, f"self has {self.dim()} dimensions, 2 to 8 are supported")
    check.shape("gamma", gamma, (self.shape[-1],))
    check.plain(self=self, gamma=gamma)
    x = self.float()
    rstd = rms(x, epsilon)
    y = varied("npu_rms_norm", x * rstd * gamma.float(), self.shape[0])
    return y.to(self.dtype), rstd


@kernel("npu_add_rms_norm")
def npu_add_rms_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """Source: document "torch_npu.npu_add_rms_norm".

    The sum is normed before it is rounded to the dtype of the output.
    """
    check = OpContract("npu_add_rms_norm")
    check.dtype("x1", x1, FLOATS)
    total = _sum(check, x1, x2, gamma)
    rstd = rms(total, epsilon)
    y = varied("npu_add_rms_norm", total * rstd * gamma.float(), x1.shape[0])
    return y.to(x1.dtype), rstd, total.to(x1.dtype)


@kernel("npu_add_rms_norm_dynamic_quant")
def npu_add_rms_norm_dynamic_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    *,
    smooth_scale1: Tensor | None = None,
    smooth_scale2: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    output_mask: list[bool] | None = None,
    y_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Source: document "torch_npu.npu_add_rms_norm_dynamic_quant"."""
    check = OpContract("npu_add_rms_norm_dynamic_quant")
    check.dtype("x1", x1, HALF)
    check.require(x1.dim() >= 2, "x1 needs at least 2 dimensions")
    check.require(y_dtype in (None, 1, torch.int8), f"y_dtype {y_dtype} isn't emulated")
    total = _sum(check, x1, x2, gamma)
    y = total * rms(total, epsilon) * gamma.float()
    if beta is not None:
        check.dtype("beta", beta, (x1.dtype,))
        check.shape("beta", beta, (x1.shape[-1],))
        y = y + beta.float()
    y = varied("npu_add_rms_norm_dynamic_quant", y, x1.shape[0])
    has_smooth = (smooth_scale1 is not None, smooth_scale2 is not None)
    wanted = list(output_mask) if output_mask else [True, all(has_smooth)]
    check.require(any(wanted), "output_mask selects no output")
    for is_wanted, is_given in zip(wanted, has_smooth, strict=True):
        check.require(is_wanted or not is_given, "a smooth_scale is given for a masked output")
    outputs = []
    for is_wanted, smooth in zip(wanted, (smooth_scale1, smooth_scale2), strict=True):
        if not is_wanted:
            outputs.append(
                (x1.new_empty(0, dtype=torch.int8), x1.new_empty(0, dtype=torch.float32))
            )
            continue
        if smooth is not None:
            check.dtype("smooth_scale", smooth, (x1.dtype,))
            check.shape("smooth_scale", smooth, (x1.shape[-1],))
        outputs.append(quantized(y if smooth is None else y * smooth.float()))
    (y1, scale1), (y2, scale2) = outputs
    return y1, y2, total.to(x1.dtype), scale1, scale2


def _sum(check: OpContract, x1: Tensor, x2: Tensor, gamma: Tensor) -> Tensor:
    check.dtype("x2", x2, (x1.dtype,))
    check.dtype("gamma", gamma, (x1.dtype,))
    check.shape("x2", x2, tuple(x1.shape))
    check.shape("gamma", gamma, (x1.shape[-1],))
    check.not_empty(x1=x1)
    check.plain(x1=x1, x2=x2, gamma=gamma)
    return x1.float() + x2.float()


@kernel("npu_swiglu")
def npu_swiglu(self: Tensor, dim: int = -1) -> Tensor:
    """Source: document "torch_npu.npu_swiglu": silu of the first half times the second."""
    check = OpContract("npu_swiglu")
    check.dtype("input", self, FLOATS)
    check.contiguous(input=self)
    check.not_empty(input=self)
    check.plain(input=self)
    check.require(self.shape[dim] % 2 == 0, f"dim {dim} has an odd extent {self.shape[dim]}")
    gate, up = self.float().chunk(2, dim=dim)
    product = gate / (1 + torch.exp(-gate)) * up
    return varied("npu_swiglu", product, self.shape[0]).to(self.dtype)


@kernel("npu_dequant_swiglu_quant")
def npu_dequant_swiglu_quant(
    x: Tensor,
    *,
    weight_scale: Tensor | None = None,
    activation_scale: Tensor | None = None,
    bias: Tensor | None = None,
    quant_scale: Tensor | None = None,
    quant_offset: Tensor | None = None,
    group_index: Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
    dst_type: int | None = None,
    round_mode: int | None = None,
    activate_dim: int | None = None,
    swiglu_mode: int = 0,
    clamp_limit: float = 7.0,
    glu_alpha: float = 1.702,
    glu_bias: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Source: document "torch_npu.npu_dequant_swiglu_quant"; dynamic quantisation only."""
    check = OpContract("npu_dequant_swiglu_quant")
    check.dtype("x", x, (torch.int32, *HALF))
    check.require(x.dim() == 2, f"x has {x.dim()} dimensions, not 2")
    check.require(x.shape[-1] % 2 == 0, f"x has an odd last extent {x.shape[-1]}")
    check.require(quant_mode == 1, "static quantisation (quant_mode 0) isn't emulated")
    check.require(swiglu_mode == 0, f"swiglu_mode {swiglu_mode} isn't emulated")
    check.require(group_index is None, "group_index is for mixtures of experts")
    check.require(bias is None and quant_offset is None, "bias and quant_offset aren't emulated")
    value = x.float()
    if x.dtype == torch.int32:
        check.require(activation_scale is not None, "int32 x needs an activation_scale")
        check.require(weight_scale is not None, "int32 x needs a weight_scale")
        assert activation_scale is not None
        assert weight_scale is not None
        check.dtype("weight_scale", weight_scale, (torch.float32,))
        check.shape("weight_scale", weight_scale, (1, x.shape[1]))
        check.dtype("activation_scale", activation_scale, (torch.float32,))
        check.shape("activation_scale", activation_scale, (x.shape[0], 1))
        value = value * weight_scale * activation_scale
    else:
        check.require(activation_scale is None, f"{x.dtype} x takes no activation_scale")
    left, right = value.chunk(2, dim=-1)
    gate, up = (left, right) if activate_left else (right, left)
    product = gate / (1 + torch.exp(-gate)) * up
    if quant_scale is not None:
        check.shape("quant_scale", quant_scale, (1, product.shape[1]))
        product = product * quant_scale.float()
    return quantized(varied("npu_dequant_swiglu_quant", product, x.shape[0]))
