"""The linears of one layer, each in int8 or in bfloat16 as in the checkpoint.

Which linears stay in floating point is part of the compile options
(`float_options`), so that it is fixed when a callable is recorded. Linears that
share an input run as one (q, k, v and gate, up) unless they differ in type;
then each runs separately and their columns are concatenated.

Declares names and shapes of constants; `weights.py` binds them by the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from qwen3_a8w8.kernels.ops import Ops
from qwen3_a8w8.kernels.program import Ref

QKV_PARTS = ("q_proj", "k_proj", "v_proj")
GATE_UP_PARTS = ("gate_proj", "up_proj")
FUSED_LINEARS: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": QKV_PARTS,
    "o_proj": ("o_proj",),
    "gate_up_proj": GATE_UP_PARTS,
    "down_proj": ("down_proj",),
}
"""Linears that run fused if their parts have the same type, in execution order."""


@dataclass(frozen=True, slots=True)
class Activation:
    """The input of linears, in the dtypes that they need.

    Attributes:
        x: [T, in] float32, or None if no linear needs it.
        x_q: [T, in] int8, or None if no linear needs it.
        x_scale: [T] float32, with `x_q`.
    """

    x: Ref | None = None
    x_q: Ref | None = None
    x_scale: Ref | None = None


def float_options(float_linears: Iterable[tuple[int, str]]) -> dict[str, int | float]:
    """Compile options that keep some linears in bfloat16.

    Args:
        float_linears: (layer, name) pairs, such as (3, "down_proj").
    """
    return {_option(layer, name): 1 for layer, name in float_linears}


class LayerLinears:
    """Records the linears of one layer.

    Args:
        ops: the op set; its options say which linears are in bfloat16.
        layer: the layer's number.
    """

    def __init__(self, ops: Ops, layer: int) -> None:
        self._ops = ops
        self._layer = layer

    def rms_norm(self, parts: Sequence[str], x: Ref, weight: Ref, eps: float) -> Activation:
        """Norms the input of `parts` and quantises it if one of them is in int8."""
        if self._all_int8(parts):
            return Activation(None, *self._ops.rms_norm_quant(x, weight, eps))
        normed = self._ops.rms_norm(x, weight, eps)
        if all(self._is_float(part) for part in parts):
            return Activation(normed)
        return Activation(normed, *self._ops.quantize(normed))

    def quantize(self, part: str, x: Ref) -> Activation:
        """Prepares the input of one linear."""
        if self._is_float(part):
            return Activation(x)
        return Activation(None, *self._ops.quantize(x))

    def silu_mul(self, part: str, gate_up: Ref) -> Activation:
        """The gated activation, the input of one linear."""
        if self._is_float(part):
            return Activation(self._ops.silu_mul(gate_up))
        return Activation(None, *self._ops.silu_mul_quant(gate_up))

    def apply(self, fused: str, parts: Sequence[str], x: Activation) -> Ref:
        """The concatenated columns of all `parts`, [T, sum of outputs] float32."""
        if len({self._is_float(part) for part in parts}) == 1:
            size = sum(self._size(part) for part in parts)
            return self._one(fused, self._is_float(parts[0]), size, self._width(parts[0]), x)
        columns = [
            self._one(part, self._is_float(part), self._size(part), self._width(part), x)
            for part in parts
        ]
        return self._ops.concat(columns)

    def apply_add(self, part: str, x: Activation, residual: Ref) -> Ref:
        """`residual` plus one linear, [T, out] float32."""
        name, size, width = self._name(part), self._size(part), self._width(part)
        if x.x_q is None or x.x_scale is None:
            weight = self._ops.bf16_weight(name, size, width)
            return self._ops.linear_bf16_add(_float(x), weight, residual)
        weights = self._ops.linear_weight(name, size, width)
        return self._ops.linear_add(x.x_q, x.x_scale, weights, residual)

    def _one(self, part: str, is_float: bool, size: int, width: int, x: Activation) -> Ref:
        name = self._name(part)
        if is_float or x.x_q is None or x.x_scale is None:
            return self._ops.linear_bf16(_float(x), self._ops.bf16_weight(name, size, width))
        return self._ops.linear(x.x_q, x.x_scale, self._ops.linear_weight(name, size, width))

    def _name(self, part: str) -> str:
        return f"layers.{self._layer}.{part}"

    def _is_float(self, part: str) -> bool:
        return _option(self._layer, part) in self._ops.options

    def _all_int8(self, parts: Sequence[str]) -> bool:
        return not any(self._is_float(part) for part in parts)

    def _size(self, part: str) -> int:
        dims = self._ops.dims
        sizes = {
            "q_proj": dims["NUM_HEADS"] * dims["HEAD_DIM"],
            "k_proj": dims["KV_HEADS"] * dims["HEAD_DIM"],
            "v_proj": dims["KV_HEADS"] * dims["HEAD_DIM"],
            "gate_proj": dims["INTERMEDIATE"],
            "up_proj": dims["INTERMEDIATE"],
        }
        return sizes.get(part, dims["HIDDEN"])

    def _width(self, part: str) -> int:
        dims = self._ops.dims
        widths = {
            "o_proj": dims["NUM_HEADS"] * dims["HEAD_DIM"],
            "down_proj": dims["INTERMEDIATE"],
        }
        return widths.get(part, dims["HIDDEN"])


def _option(layer: int, name: str) -> str:
    return f"float.{layer}.{name}"


def _float(x: Activation) -> Ref:
    assert x.x is not None, "rms_norm, quantize and silu_mul keep x for linears in bfloat16"
    return x.x
