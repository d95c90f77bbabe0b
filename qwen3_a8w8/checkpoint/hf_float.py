"""Reads Hugging Face checkpoints in bf16, fp16 or fp32, quantising on load.

Round to nearest, one scale per output channel, no calibration data; the rule
is `quantization.int8.quantize_weight`. Doesn't know about quantised formats.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from qwen3_a8w8.checkpoint.model_files import ModelFiles
from qwen3_a8w8.checkpoint.names import (
    LINEAR_NAMES,
    float_tensors,
    linear_module,
    linear_weights,
)
from qwen3_a8w8.checkpoint.reader import (
    LinearScheme,
    QuantizedLinear,
    check_tensors,
    float_expectations,
)
from qwen3_a8w8.checkpoint.safetensors_file import SafetensorsFiles
from qwen3_a8w8.errors import CheckpointError
from qwen3_a8w8.quantization.int8 import quantize_weight


class HfFloatReader:
    """A checkpoint without quantisation; see `CheckpointReader` for the methods."""

    format: ClassVar[str] = "hf-float"

    @classmethod
    def recognises(cls, model: ModelFiles) -> bool:
        """True if config.json has no quantisation."""
        return model.quantization is None

    def __init__(self, model: ModelFiles) -> None:
        """Opens the files and checks all headers."""
        self.files = SafetensorsFiles(model.directory)
        shapes = {**float_tensors(model.config), **linear_weights(model.config)}
        check_tensors(self.files, model.config, float_expectations(shapes))
        self.notes: tuple[str, ...] = ()
        self.aliases: dict[str, str] = {}
        self.schemes = {
            (layer, name): LinearScheme(
                is_float=False,
                description=f"{self._dtype(layer, name)}, quantised to int8 per channel on load",
            )
            for layer in range(model.config.num_layers)
            for name in LINEAR_NAMES
        }

    def _dtype(self, layer: int, name: str) -> str:
        return self.files.infos[f"{linear_module(layer, name)}.weight"].dtype.lower()

    def linear(
        self, layer: int, name: str, *, scale_dtype: torch.dtype = torch.float32
    ) -> QuantizedLinear:
        """Reads one weight and quantises it, with scales that `scale_dtype` can hold."""
        tensor = f"{linear_module(layer, name)}.weight"
        try:
            w_q, w_scale = quantize_weight(self.files.read(tensor), scale_dtype=scale_dtype)
        except ValueError as error:
            raise CheckpointError(
                f"{self.files.infos[tensor].path}: tensor {tensor}: expected finite values, "
                f"found: {error}; the checkpoint is damaged"
            ) from error
        return QuantizedLinear(w_q, w_scale)
