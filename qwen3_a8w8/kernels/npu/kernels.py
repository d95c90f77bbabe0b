"""The kernels on tensors: torch_npu's ops, called by keyword, in the form that `Forms` has chosen.

Floats between kernels are bfloat16, since the ops that quantise and attend take nothing wider; sums
inside an op are in float32 or int32. What an op doesn't check is checked before: `backend.py` does
so once per dispatch. Contracts: documents of torch_npu's ops, in the versions of `capabilities.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qwen3_a8w8.kernels.npu.attention import AttentionKernels
from qwen3_a8w8.kernels.npu.device import NpuDevice
from qwen3_a8w8.kernels.npu.forms import Forms, in_pieces

MAX_LAST_DIM = 65535
"""Most columns of an operand of `npu_quant_matmul`."""


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """Weight of an int8 linear, cut into as many parts as the op's limit on columns needs.

    Attributes:
        parts: [in, n] int8 each, in format FRACTAL_NZ; n sums to the output channels.
    """

    parts: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class NormWeight:
    """A float vector: the weight of a norm, or scales.

    Attributes:
        wide: [H] float32.
        half: [H] bfloat16 if that loses nothing, which the fused op needs; else None.
    """

    wide: Tensor
    half: Tensor | None


def as_norm(weight: NormWeight | Tensor) -> NormWeight:
    """A packed vector, or one that is an argument of the callable."""
    return weight if isinstance(weight, NormWeight) else NormWeight(weight, None)


def half(x: Tensor) -> Tensor:
    """`x` in bfloat16, contiguous."""
    return (x if x.dtype is torch.bfloat16 else x.to(torch.bfloat16)).contiguous()


class NpuKernels:
    """The kernels of one device.

    Args:
        device: where they run.
        forms: in which form; may change until the first model is loaded.
        reads_int8_cache: see `Capabilities`.
    """

    def __init__(self, device: NpuDevice, forms: Forms, *, reads_int8_cache: bool) -> None:
        self._ops = device.torch_npu
        self._device = device
        self.forms = forms
        self.attention = AttentionKernels(device, forms, reads_int8_cache=reads_int8_cache)

    def pack_int8(self, weight: Tensor) -> Int8Weight:
        """Moves a weight to the device, transposed, in the format that products read fastest.

        Args:
            weight: [out, in] int8 on the host.
        """
        num_parts = -(-weight.shape[0] // MAX_LAST_DIM)
        size = -(-weight.shape[0] // (16 * num_parts)) * 16
        where = self._device.torch_device
        return Int8Weight(
            tuple(
                self._device.to_nz(part.to(where).t().contiguous())
                for part in torch.split(weight, size)
            )
        )

    def pack_norm(self, weight: Tensor) -> NormWeight:
        """Moves the weight of a norm to the device.

        Args:
            weight: [H] float32 on the host.
        """
        narrow = weight.to(torch.bfloat16)
        where = self._device.torch_device
        is_exact = torch.equal(narrow.float(), weight)
        return NormWeight(weight.to(where), narrow.to(where) if is_exact else None)

    def linear(
        self, x_q: Tensor, x_scale: Tensor, weight: Int8Weight, scales: NormWeight | Tensor
    ) -> Tensor:
        """acc * x_scale * w_scale with exact int32 sums.

        Args:
            x_q: [T, in] int8.
            x_scale: [T] float32.
            weight: of [out, in].
            scales: [out] float32, w_scale.

        Returns:
            [T, out] bfloat16.
        """
        w_scale = as_norm(scales).wide
        columns: list[Tensor] = []
        start = 0
        for part in weight.parts:
            scale = w_scale[start : start + part.shape[1]].contiguous()
            start += part.shape[1]

            def multiply(
                x: Tensor, x_scale: Tensor, part: Tensor = part, scale: Tensor = scale
            ) -> Any:
                return self._ops.npu_quant_matmul(
                    x, part, scale, pertoken_scale=x_scale, output_dtype=torch.bfloat16
                )

            columns.append(self._by_form("quant_matmul", multiply, x_q.contiguous(), x_scale))
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)

    def matmul(self, x: Tensor, weight: Tensor) -> Tensor:
        """Product of bfloat16 rows.

        Args:
            x: [T, in].
            weight: [out, in] bfloat16.

        Returns:
            [T, out] bfloat16.
        """
        table = weight.t()
        y: Tensor = self._by_form("matmul", lambda rows: torch.mm(rows, table), half(x))
        return y

    def rms_norm(self, x: Tensor, weight: NormWeight | Tensor, eps: float) -> Tensor:
        """Norm of the last dim.

        Args:
            x: [T, H] or [T, heads, D].
            weight: of the last dim.
            eps: added to the mean square.

        Returns:
            bfloat16, shaped as `x`.
        """
        gamma = as_norm(weight).wide
        y: Tensor = self._by_form(
            "rms_norm",
            lambda rows: self._ops.npu_rms_norm(rows, gamma, epsilon=eps)[0],
            half(x),
        )
        return y

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Symmetric int8 of the last dim, scale = max|x| / 127.

        Args:
            x: [T, N] or [T, heads, D].

        Returns:
            int8 shaped as `x`, and float32 scales of its leading dims.
        """
        x_q, scale = self._by_form(
            "dynamic_quant", lambda rows: self._ops.npu_dynamic_quant(rows), half(x)
        )
        return x_q, scale

    def add_rms_norm_quant(
        self, x: Tensor, residual: Tensor, weight: NormWeight | Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sum, norm and quantisation of rows.

        Args:
            x: [T, H].
            residual: [T, H], added to it.
            weight: of the norm.
            eps: of the norm.

        Returns:
            The sum [T, H] bfloat16; the normed rows [T, H] int8, and their scales [T] float32.
        """
        x, residual = half(x), half(residual)
        gamma = as_norm(weight).half
        if gamma is None or self.forms["add_rms_norm_quant"] == "split":
            total = residual + x
            return total, *self.quantize(self.rms_norm(total, weight, eps))
        x_q, _, total, scale, _ = self._ops.npu_add_rms_norm_dynamic_quant(
            x, residual, gamma, epsilon=eps, output_mask=[True, False]
        )
        return total, x_q, scale

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """silu(first half) * second half of each row.

        Args:
            gate_up: [T, 2 * I].

        Returns:
            [T, I] bfloat16.
        """
        y: Tensor = self._by_form(
            "swiglu", lambda rows: self._ops.npu_swiglu(rows, dim=-1), half(gate_up)
        )
        return y

    def rotate(self, q: Tensor, k: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        """Rotates heads by halves.

        Args:
            q: [T, heads, D] bfloat16; may be overwritten.
            k: [T, kv_heads, D] bfloat16; may be overwritten.
            table: [T, D] float32, cosines then sines of each token's position.

        Returns:
            q and k, rotated.
        """
        head_dim = q.shape[-1]
        if self.forms["rotary"] == "op" and head_dim in (64, 128):
            cos, sin = (
                half(part.repeat(1, 2)).view(-1, 1, 1, head_dim) for part in table.chunk(2, dim=1)
            )
            q, k = q.contiguous().unsqueeze(1), k.contiguous().unsqueeze(1)
            q, k = self._ops.npu_apply_rotary_pos_emb(q, k, cos, sin, layout="BSND")
            return q.squeeze(1), k.squeeze(1)
        return _rotated(q, table), _rotated(k, table)

    def _by_form(self, kernel: str, call: Any, *operands: Tensor) -> Any:
        if self.forms[kernel] == "sixteen":
            return in_pieces(call, *operands)
        return call(*operands)


def _rotated(x: Tensor, table: Tensor) -> Tensor:
    cos, sin = (part.unsqueeze(1) for part in table.chunk(2, dim=1))  # [T, 1, D/2]
    first, second = x.float().chunk(2, dim=-1)
    return half(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))
