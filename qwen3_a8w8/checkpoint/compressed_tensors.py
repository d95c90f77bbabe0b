"""Reads compressed-tensors checkpoints of the kind W8A8: int8 weights, int8 activations.

Supported is one scheme: format "int-quantized", symmetric int8 weights with a
scale per output channel, symmetric int8 activations quantised per token at run
time, lm_head left in floating point. `compressed_tensors_scheme` decides that;
this module knows the tensors.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from qwen3_a8w8.checkpoint.compressed_tensors_scheme import QUANT_METHOD, check_scheme
from qwen3_a8w8.checkpoint.model_files import ModelFiles
from qwen3_a8w8.checkpoint.names import float_tensors, linear_module, linear_weights
from qwen3_a8w8.checkpoint.reader import (
    FLOAT_DTYPES,
    ExpectedTensor,
    QuantizedLinear,
    check_finite,
    check_tensors,
    float_expectations,
)
from qwen3_a8w8.checkpoint.safetensors_file import SafetensorsFiles
from qwen3_a8w8.errors import CheckpointError


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
        check_scheme(model.quantization, model.config, str(model.directory / "config.json"))
        self.files = SafetensorsFiles(model.directory)
        expected = float_expectations(float_tensors(model.config))
        for name, (num_out, num_in) in linear_weights(model.config).items():
            expected[name] = ExpectedTensor(((num_out, num_in),), ("I8",))
            expected[f"{name}_scale"] = ExpectedTensor(((num_out, 1), (num_out,)), FLOAT_DTYPES)
        check_tensors(self.files, model.config, expected)

    def linear(self, layer: int, name: str) -> QuantizedLinear:
        """Reads one weight and its scales, as they are: q may span -128..127."""
        tensor = f"{linear_module(layer, name)}.weight"
        scale = self.files.read(f"{tensor}_scale").to(torch.float32, copy=True).reshape(-1)
        check_finite(self.files, f"{tensor}_scale", scale)
        if bool((scale < 0).any()):
            raise CheckpointError(
                f"{self.files.infos[tensor].path}: tensor {tensor}_scale: expected scales of at "
                f"least 0, found {float(scale.min())}; the checkpoint is damaged"
            )
        return QuantizedLinear(self.files.read(tensor), scale)
