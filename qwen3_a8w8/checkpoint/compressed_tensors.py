"""Reads compressed-tensors checkpoints of the kind W8A8: int8 weights, int8 activations.

`compressed_tensors_scheme` decides the scheme of a linear (int8, asymmetric, floating
point); this module reads the tensors of that scheme.
"""

from __future__ import annotations

from typing import ClassVar

from qwen3_a8w8.checkpoint.compressed_tensors_scheme import QUANT_METHOD, read_schemes
from qwen3_a8w8.checkpoint.model_files import ModelFiles
from qwen3_a8w8.checkpoint.names import float_tensors, linear_module, linear_shape
from qwen3_a8w8.checkpoint.reader import (
    FLOAT_DTYPES,
    ExpectedTensor,
    Linear,
    check_tensors,
    float_expectations,
    read_float_linear,
    read_int8_linear,
)
from qwen3_a8w8.checkpoint.safetensors_file import SafetensorsFiles

_ZERO_POINT_DTYPES = ("I8", "I32", "I64", *FLOAT_DTYPES)
# Parameters of static schemes, which we quantise at run time instead. The last two are the
# spelling of the first releases for the scales of keys and values.
_STATIC_LINEAR = ("input_scale", "input_zero_point", "output_scale", "output_zero_point")
_STATIC_ATTENTION = ("k_scale", "v_scale", "q_scale", "k_zero_point", "v_zero_point")


class CompressedTensorsReader:
    """A W8A8 checkpoint; see `CheckpointReader` for the methods."""

    format: ClassVar[str] = "compressed-tensors"

    @classmethod
    def recognises(cls, model: ModelFiles) -> bool:
        """True if config.json names the quantisation method "compressed-tensors"."""
        quantization = model.quantization
        return isinstance(quantization, dict) and quantization.get("quant_method") == QUANT_METHOD

    def __init__(self, model: ModelFiles) -> None:
        """Checks the scheme, opens the files and checks all headers."""
        config = model.config
        found = read_schemes(model.quantization, config, str(model.directory / "config.json"))
        self.schemes = found.linears
        self.notes = found.notes
        self.aliases: dict[str, str] = {}
        self.files = SafetensorsFiles(model.directory)
        expected = float_expectations(float_tensors(config))
        optional: dict[str, ExpectedTensor] = {}
        for (layer, name), scheme in self.schemes.items():
            module = linear_module(layer, name)
            num_out, num_in = linear_shape(config, name)
            if scheme.is_float:
                shape = (num_out, num_in)
                expected[f"{module}.weight"] = ExpectedTensor((shape,), FLOAT_DTYPES)
                continue
            scales = ((num_out, 1), (num_out,), (1,), (1, 1))
            expected[f"{module}.weight"] = ExpectedTensor(((num_out, num_in),), ("I8",))
            expected[f"{module}.weight_scale"] = ExpectedTensor(scales, FLOAT_DTYPES)
            zero_point = ExpectedTensor(scales, _ZERO_POINT_DTYPES)
            # Early releases store zeros for symmetric weights.
            required = expected if scheme.has_zero_point else optional
            required[f"{module}.weight_zero_point"] = zero_point
            for suffix in _STATIC_LINEAR:
                optional[f"{module}.{suffix}"] = ExpectedTensor(((1,), ()), _ZERO_POINT_DTYPES)
        for layer in range(config.num_layers):
            for suffix in _STATIC_ATTENTION:
                tensor = f"model.layers.{layer}.self_attn.{suffix}"
                shapes = ((1,), (), (config.num_kv_heads, 1, 1), (config.num_kv_heads,))
                optional[tensor] = ExpectedTensor(shapes, _ZERO_POINT_DTYPES)
        check_tensors(self.files, config, expected, optional)

    def linear(self, layer: int, name: str) -> Linear:
        """Reads one weight and its scales unchanged: q may span -128..127."""
        tensor = f"{linear_module(layer, name)}.weight"
        if self.schemes[layer, name].is_float:
            return read_float_linear(self.files, tensor)
        zero_point = f"{tensor}_zero_point"
        has_zero_point = zero_point in self.files.infos
        return read_int8_linear(
            self.files, tensor, f"{tensor}_scale", zero_point if has_zero_point else None
        )
