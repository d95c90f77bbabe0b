"""Quantises the linears of one layer by round to nearest, SmoothQuant and GPTQ.

`LayerStatistics` collects what the methods need while calibration sequences pass
through the layer; `quantize_layer` does the rest. Uses the short names of tensors
inside a layer; doesn't know about files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from qwen3_a8w8.checkpoint.names import LINEAR_NAMES, linear_module
from qwen3_a8w8.checkpoint.quantize_options import QuantizeOptions
from qwen3_a8w8.checkpoint.quantize_report import LinearReport
from qwen3_a8w8.checkpoint.reader import FloatLinear, Linear, QuantizedLinear
from qwen3_a8w8.quantization.gptq import gptq_quantize, inverse_factor
from qwen3_a8w8.quantization.int8 import (
    dequantize,
    quantize_activation,
    round_to_scale,
    search_weight_scale,
)
from qwen3_a8w8.quantization.qwen3_layer import INPUT_POINTS
from qwen3_a8w8.quantization.smoothing import smoothing_scales

SAMPLE_TOKENS = 256
"""Tokens on which the output error is measured."""

_SMOOTHED = {"attention": "input_layernorm", "mlp": "post_attention_layernorm"}


class LayerStatistics:
    """Statistics of the inputs of a layer's linears.

    Args:
        has_hessians: collect sums of x^T x, `[in, in]` float32 each.
    """

    def __init__(self, *, has_hessians: bool) -> None:
        self.absmax: dict[str, Tensor] = {}
        self.samples: dict[str, Tensor] = {}
        self.hessians: dict[str, Tensor] = {}
        self._has_hessians = has_hessians

    def observe(self, point: str, x: Tensor) -> None:
        """Adds the input `[num_tokens, width]` float32 of one sequence at one point."""
        absmax = x.abs().amax(dim=0)
        known = self.absmax.get(point)
        self.absmax[point] = absmax if known is None else torch.maximum(known, absmax)
        # A few tokens of every sequence, until there are enough.
        kept = self.samples.get(point)
        room = SAMPLE_TOKENS - (0 if kept is None else kept.shape[0])
        if room > 0:
            chosen = x[:: max(1, x.shape[0] // 16)][:room].clone()
            self.samples[point] = chosen if kept is None else torch.cat((kept, chosen))
        if self._has_hessians:
            if point not in self.hessians:
                self.hessians[point] = torch.zeros(x.shape[1], x.shape[1])
            self.hessians[point].addmm_(x.T, x)


@dataclass(frozen=True, slots=True)
class QuantizedLayer:
    """The result for one layer.

    Attributes:
        linears: by short name.
        norms: the smoothed norms by short name, in their original dtypes.
        reports: one per linear.
    """

    linears: dict[str, Linear]
    norms: dict[str, Tensor]
    reports: list[LinearReport]


def quantize_layer(
    layer: int,
    weights: Mapping[str, Tensor],
    norms: Mapping[str, Tensor],
    statistics: LayerStatistics | None,
    options: QuantizeOptions,
) -> QuantizedLayer:
    """Quantises one layer.

    Args:
        layer: its number.
        weights: its linears by short name, `[out, in]`, in the dtype of their future scales.
        norms: its norms by short name, in the dtype in which they are stored.
        statistics: of its inputs, or None without calibration data. Hessians are consumed.
        options: method and its parameters.

    Raises:
        ValueError: GPTQ can't use the calibration statistics.
    """
    linears: dict[str, Linear] = {}
    new_norms = dict(norms)
    reports: dict[str, LinearReport] = {}
    for point, readers in INPUT_POINTS.items():
        factors: Tensor | None = None
        if statistics is not None and options.smooths and point in _SMOOTHED:
            norm = _SMOOTHED[point]
            new_norms[norm], factors = smoothing_scales(
                statistics.absmax[point],
                [weights[name].float() for name in readers],
                norms[norm],
                alpha=options.alpha,
            )
            statistics.absmax[point] /= factors
            statistics.samples[point] /= factors
            if point in statistics.hessians:
                statistics.hessians[point].div_(factors).div_(factors[:, None])
        factor: Tensor | None = None
        if statistics is not None and options.compensates:
            factor = inverse_factor(statistics.hessians.pop(point), damping=options.damping)
        for name in readers:
            module = linear_module(layer, name)
            dtype = weights[name].dtype
            weight = weights[name].float()
            if factors is not None:
                weight = weight * factors
            kept = options.is_kept(module)
            scale = search_weight_scale(weight, search=options.scale_search, scale_dtype=dtype)
            w_q = (
                round_to_scale(weight, scale)
                if factor is None
                else gptq_quantize(weight, scale, factor)
            )
            quantized = QuantizedLinear(w_q, scale)
            x = None if statistics is None else statistics.samples[point]
            absmax = None if statistics is None else statistics.absmax[point]
            reports[name] = _report(layer, name, kept, weight, quantized, x, absmax)
            linears[name] = FloatLinear(weight.to(dtype)) if kept else quantized
    return QuantizedLayer(linears, new_norms, [reports[name] for name in LINEAR_NAMES])


def _report(
    layer: int,
    name: str,
    is_kept: bool,
    weight: Tensor,
    quantized: QuantizedLinear,
    x: Tensor | None,
    absmax: Tensor | None,
) -> LinearReport:
    dense = dequantize(quantized.w_q, quantized.w_scale)
    output_error = outlier_ratio = None
    if x is not None and absmax is not None:
        exact = x @ weight.T
        found = dequantize(*quantize_activation(x)) @ dense.T
        output_error = _relative(found, exact)
        outlier_ratio = float(absmax.max() / absmax.median().clamp_min(1e-12))
    return LinearReport(
        module=linear_module(layer, name),
        layer=layer,
        name=name,
        is_kept=is_kept,
        weight_error=_relative(dense, weight),
        output_error=output_error,
        outlier_ratio=outlier_ratio,
    )


def _relative(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm().clamp_min(1e-12))
