"""Reads checkpoints written by torchao's int8 dynamic quantisation through transformers.

The quantised weight `X.weight` is stored in parts, `X._weight_qdata` int8,
`X._weight_scale` float32 and `X._weight_zero_point` int8; linears that weren't
converted keep their `X.weight`. The header of the file distinguishes them, so the
lists of modules in config.json aren't needed.

Source: torchao, `Int8DynamicActivationInt8WeightConfig` version 2 and
`Int8Tensor` (attribute names as written by its safetensors support).
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from qwen3_a8w8.checkpoint.model_files import ModelFiles
from qwen3_a8w8.checkpoint.names import LINEAR_NAMES, float_tensors, linear_module, linear_shape
from qwen3_a8w8.checkpoint.reader import (
    FLOAT_DTYPES,
    FLOAT_SCHEME,
    ExpectedTensor,
    Linear,
    LinearScheme,
    check_tensors,
    float_expectations,
    read_float_linear,
    read_int8_linear,
)
from qwen3_a8w8.checkpoint.safetensors_file import SafetensorsFiles
from qwen3_a8w8.errors import CheckpointError

CONFIG_TYPE = "Int8DynamicActivationInt8WeightConfig"
_OLD_NAME = "int8_dynamic_activation_int8_weight"
_INT8 = LinearScheme(is_float=False, description="int8 per channel", has_zero_point=True)


class TorchAoReader:
    """An int8 dynamic torchao checkpoint; see `CheckpointReader` for the methods."""

    format: ClassVar[str] = "torchao"

    @classmethod
    def recognises(cls, model: ModelFiles) -> bool:
        """True if config.json names the quantisation method "torchao"."""
        quantization = model.quantization
        return isinstance(quantization, dict) and quantization.get("quant_method") == "torchao"

    def __init__(self, model: ModelFiles) -> None:
        """Checks the scheme, opens the files and checks all headers."""
        source = model.directory / "config.json"
        _check_config(model.quantization, str(source))
        config = model.config
        self.files = SafetensorsFiles(model.directory)
        self.notes: tuple[str, ...] = ()
        self.aliases: dict[str, str] = {}
        self.schemes: dict[tuple[int, str], LinearScheme] = {}
        expected = float_expectations(float_tensors(config))
        for layer in range(config.num_layers):
            for name in LINEAR_NAMES:
                module = linear_module(layer, name)
                num_out, num_in = linear_shape(config, name)
                if f"{module}.weight" in self.files.infos:
                    self.schemes[layer, name] = FLOAT_SCHEME
                    shape = (num_out, num_in)
                    expected[f"{module}.weight"] = ExpectedTensor((shape,), FLOAT_DTYPES)
                    continue
                self.schemes[layer, name] = _INT8
                scales = ((num_out, 1), (num_out,))
                for part, shapes, dtypes in (
                    ("qdata", ((num_out, num_in),), ("I8",)),
                    ("scale", scales, FLOAT_DTYPES),
                    ("zero_point", scales, ("I8", "I32", "I64", *FLOAT_DTYPES)),
                ):
                    expected[f"{module}._weight_{part}"] = ExpectedTensor(shapes, dtypes)
        check_tensors(self.files, config, expected)

    def linear(self, layer: int, name: str) -> Linear:
        """Reads one weight, its scales and zero points (zeros if it is symmetric)."""
        module = linear_module(layer, name)
        if self.schemes[layer, name].is_float:
            return read_float_linear(self.files, f"{module}.weight")
        prefix = f"{module}._weight_"
        return read_int8_linear(
            self.files, f"{prefix}qdata", f"{prefix}scale", f"{prefix}zero_point"
        )


def _check_config(quantization: Any, source: str) -> None:
    quant_type = quantization.get("quant_type")
    # One config for all modules is under "default"; per-module ones under their names.
    configs = quant_type.values() if isinstance(quant_type, dict) else [quant_type]
    for found in configs:
        for name in _config_types(found):
            if name not in (CONFIG_TYPE, _OLD_NAME):
                raise CheckpointError(
                    f"{source}: quantization_config: quant_type is {name!r}, expected "
                    f"{CONFIG_TYPE!r}; supported is int8 with dynamic int8 activations (W8A8)"
                )


def _config_types(found: Any) -> list[str]:
    """Names of the quantisation configs in an entry of quant_type, including per-module ones."""
    if isinstance(found, dict):
        name = found.get("_type")
        data = found.get("_data")
        modules = data.get("fqn_to_config") if isinstance(data, dict) else None
        modules = modules or (data.get("module_fqn_to_config") if isinstance(data, dict) else None)
        if isinstance(name, str) and re.search(r"Fqn", name) and isinstance(modules, dict):
            entries = [entry for entry in modules.values() if entry is not None]
            return [inner for entry in entries for inner in _config_types(entry)]
        return [str(name)]
    return [str(found)]
