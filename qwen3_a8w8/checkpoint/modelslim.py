"""Reads checkpoints of Ascend's ModelSlim: W8A8, W8A8_DYNAMIC, W8A8_MIX and FLOAT linears.

`quant_model_description.json` has the type of every tensor; config.json has none.
Weights are `w = (q - offset) * scale`. Static linears (W8A8) also have scales for
their activations; these aren't used, since activations are quantised at run time, but
if a static linear stores no `weight_scale`, it is computed from them:
`deq_scale = input_scale * weight_scale`. With outlier suppression a norm is stored twice:
the original and, under `NORM.module`, the one that quantised linears read.

Source: msModelSlim documentation, "Quantization Weight Format" and "Anti-Outlier".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch

from qwen3_a8w8.checkpoint.model_files import ModelFiles, read_json_object
from qwen3_a8w8.checkpoint.names import (
    EMBED_TOKENS,
    LINEAR_NAMES,
    float_tensors,
    linear_module,
    linear_shape,
)
from qwen3_a8w8.checkpoint.reader import (
    FLOAT_DTYPES,
    FLOAT_SCHEME,
    ExpectedTensor,
    Linear,
    LinearScheme,
    QuantizedLinear,
    check_tensors,
    float_expectations,
    read_float_linear,
    read_int8_linear,
)
from qwen3_a8w8.checkpoint.safetensors_file import SafetensorsFiles
from qwen3_a8w8.config import ModelConfig
from qwen3_a8w8.errors import CheckpointError

DESCRIPTION = "quant_model_description"
INT8_TYPES = ("W8A8", "W8A8_DYNAMIC", "W8A8_MIX")

_NORM_READERS = {
    "input_layernorm": ("q_proj", "k_proj", "v_proj"),
    "post_attention_layernorm": ("gate_proj", "up_proj"),
}
_SCALAR = ((1,), (), (1, 1))
_INTEGERS = ("I8", "I16", "I32", "I64")
_STATIC_NOTE = (
    "its static activation scales aren't used: activations are quantised at run time, with a "
    "scale per token"
)
_KV_NOTE = (
    "its static scales of keys and values aren't used: they are quantised at run time, with a "
    "scale per token and head"
)


class ModelSlimReader:
    """A ModelSlim checkpoint; see `CheckpointReader` for the methods."""

    format: ClassVar[str] = "modelslim"

    @classmethod
    def recognises(cls, model: ModelFiles) -> bool:
        """True if there is a `quant_model_description*.json` with the type of the embedding."""
        return _description_file(model.directory) is not None

    def __init__(self, model: ModelFiles) -> None:
        """Reads the description, opens the files and checks all headers."""
        config = model.config
        path = _description_file(model.directory)
        self._description_path = path or model.directory / f"{DESCRIPTION}.json"
        self._types = read_json_object(self._description_path)
        self.files = SafetensorsFiles(model.directory, _stem(model.directory))
        self.schemes: dict[tuple[int, str], LinearScheme] = {}
        self.aliases: dict[str, str] = {}
        expected = float_expectations(float_tensors(config))
        for name in expected:
            self._check_type(name, ("FLOAT",))
        optional: dict[str, ExpectedTensor] = {}
        notes = []
        for layer in range(config.num_layers):
            for name in LINEAR_NAMES:
                kind = self._expect_linear(config, layer, name, expected, optional)
                if kind in ("W8A8", "W8A8_MIX"):
                    notes.append(_STATIC_NOTE)
            notes += self._expect_kv_scales(config, layer, optional)
            self._expect_norms(config, layer, optional)
        self.notes = tuple(dict.fromkeys(notes))
        check_tensors(self.files, config, expected, optional)
        for name in optional:
            if name.endswith(".bias") and name in self.files.infos:
                self._refuse_bias(name)

    def linear(self, layer: int, name: str) -> Linear:
        """Reads one weight; static linears become dynamic ones."""
        module = linear_module(layer, name)
        weight = f"{module}.weight"
        if self.schemes[layer, name].is_float:
            return read_float_linear(self.files, weight)
        offset = f"{module}.weight_offset"
        has_offset = offset in self.files.infos
        if f"{module}.weight_scale" in self.files.infos:
            result = read_int8_linear(
                self.files, weight, f"{module}.weight_scale", offset if has_offset else None
            )
        else:
            result = self._from_static_scales(module)
        if f"{module}.quant_bias" in self.files.infos:
            self._check_no_bias(module)
        return result

    def _from_static_scales(self, module: str) -> QuantizedLinear:
        files = self.files
        w_q = files.read(f"{module}.weight")
        input_scale = files.read(f"{module}.input_scale").float().reshape(-1)
        scale = (_deq_scale(files, module) / input_scale).contiguous()
        if not bool((torch.isfinite(scale) & (scale >= 0)).all()):
            raise CheckpointError(
                f"{files.infos[f'{module}.deq_scale'].path}: tensor {module}.deq_scale: expected "
                "finite scales of at least 0 after division by input_scale, found others; the "
                "checkpoint is damaged"
            )
        return QuantizedLinear(w_q, scale)

    def _check_no_bias(self, module: str) -> None:
        """Refuses a static linear whose quant_bias is more than the offset's correction."""
        files = self.files
        total = files.read(f"{module}.quant_bias").double().reshape(-1)
        offset = files.read(f"{module}.input_offset").double().reshape(-1)
        # Tools compute the correction in float32, so it is off in the last of its 24 bits.
        correction = -offset * files.read(f"{module}.weight").sum(dim=1, dtype=torch.float64)
        tolerance = 1 + correction.abs() * 2.0**-20
        if bool(((total - correction).abs() > tolerance).any()):
            raise CheckpointError(
                f"{files.infos[f'{module}.quant_bias'].path}: tensor {module}.quant_bias: expected "
                "-input_offset * (sum of the weights), found more: the linear has a bias, which "
                "Qwen3 doesn't have"
            )

    def _expect_linear(
        self,
        config: ModelConfig,
        layer: int,
        name: str,
        expected: dict[str, ExpectedTensor],
        optional: dict[str, ExpectedTensor],
    ) -> str:
        module = linear_module(layer, name)
        num_out, num_in = linear_shape(config, name)
        kind = self._check_type(f"{module}.weight", ("FLOAT", *INT8_TYPES))
        optional[f"{module}.bias"] = ExpectedTensor(((num_out,),), FLOAT_DTYPES)
        matrix = ((num_out, num_in),)
        if kind == "FLOAT":
            self.schemes[layer, name] = FLOAT_SCHEME
            expected[f"{module}.weight"] = ExpectedTensor(matrix, FLOAT_DTYPES)
            return kind
        label = "int8 per channel" if kind == "W8A8_DYNAMIC" else f"int8 per channel ({kind})"
        self.schemes[layer, name] = LinearScheme(is_float=False, description=label)
        channels = ((num_out,), (num_out, 1))
        expected[f"{module}.weight"] = ExpectedTensor(matrix, ("I8",))
        scale = ExpectedTensor(channels, FLOAT_DTYPES)
        is_static = kind in ("W8A8", "W8A8_MIX")
        has_scale = f"{module}.weight_scale" in self.files.infos
        static = expected if kind == "W8A8" and not has_scale else optional
        (optional if is_static else expected)[f"{module}.weight_scale"] = scale
        optional[f"{module}.weight_offset"] = ExpectedTensor(channels, (*_INTEGERS, *FLOAT_DTYPES))
        if is_static:
            static[f"{module}.input_scale"] = ExpectedTensor(_SCALAR, FLOAT_DTYPES)
            static[f"{module}.deq_scale"] = ExpectedTensor(channels, ("I64", *FLOAT_DTYPES))
            optional[f"{module}.input_offset"] = ExpectedTensor(
                _SCALAR, (*_INTEGERS, *FLOAT_DTYPES)
            )
            optional[f"{module}.quant_bias"] = ExpectedTensor(channels, _INTEGERS)
            if f"{module}.quant_bias" in self.files.infos:
                expected[f"{module}.input_offset"] = optional.pop(f"{module}.input_offset")
        if kind == "W8A8_MIX":
            expected[f"{module}.weight_scale"] = optional.pop(f"{module}.weight_scale")
        return kind

    def _expect_kv_scales(
        self, config: ModelConfig, layer: int, optional: dict[str, ExpectedTensor]
    ) -> list[str]:
        shapes = ((config.kv_size,), (config.kv_size, 1), (1,), (config.num_kv_heads,))
        found = []
        for name in ("k_proj", "v_proj"):
            for suffix in ("kv_cache_scale", "kv_cache_offset"):
                tensor = f"{linear_module(layer, name)}.{suffix}"
                optional[tensor] = ExpectedTensor(shapes, (*_INTEGERS, *FLOAT_DTYPES))
                if tensor in self.files.infos:
                    found.append(_KV_NOTE)
        return found

    def _expect_norms(
        self, config: ModelConfig, layer: int, optional: dict[str, ExpectedTensor]
    ) -> None:
        """Expects the norms that outlier suppression adds; the bias is zero if symmetric."""
        vector = ExpectedTensor(((config.hidden_size,),), FLOAT_DTYPES)
        for norm, readers in _NORM_READERS.items():
            prefix = f"model.layers.{layer}.{norm}"
            smoothed = f"{prefix}.module.weight"
            for name in (f"{prefix}.bias", smoothed, f"{prefix}.module.bias"):
                optional[name] = vector
            if smoothed not in self.files.infos:
                continue
            is_float = {self.schemes[layer, reader].is_float for reader in readers}
            if len(is_float) > 1:
                kinds = ", ".join(
                    f"{reader} {'FLOAT' if self.schemes[layer, reader].is_float else 'int8'}"
                    for reader in readers
                )
                raise CheckpointError(
                    f"{self.files.infos[smoothed].path}: tensor {smoothed}: its readers are of "
                    f"both kinds ({kinds}), so they need two norms, expected one kind; quantise "
                    "all of them or none, or without outlier suppression"
                )
            if is_float == {False}:
                self.aliases[f"{prefix}.weight"] = smoothed

    def _check_type(self, tensor: str, supported: tuple[str, ...]) -> str:
        kind = self._types.get(tensor)
        if kind is None and supported == ("FLOAT",):
            return "FLOAT"
        if kind not in supported:
            found = "isn't listed" if kind is None else f"is of type {kind!r}"
            raise CheckpointError(
                f"{self._description_path}: tensor {tensor} {found}, expected "
                f"{' or '.join(supported)}"
            )
        return str(kind)

    def _refuse_bias(self, name: str) -> None:
        if bool(self.files.read(name).any()):
            raise CheckpointError(
                f"{self.files.infos[name].path}: tensor {name}: expected zeros or no such tensor, "
                "found a bias, which Qwen3 doesn't have; quantise without asymmetric outlier "
                "suppression"
            )


def _deq_scale(files: SafetensorsFiles, module: str) -> torch.Tensor:
    scale = files.read(f"{module}.deq_scale").reshape(-1)
    if scale.dtype == torch.int64:
        # For fp16 models: the bits of a float32, widened.
        return scale.to(torch.int32).view(torch.float32)
    return scale.float()


def _description_file(directory: Path) -> Path | None:
    for path in sorted(directory.glob(f"{DESCRIPTION}*.json")):
        description: dict[str, Any] = read_json_object(path)
        if EMBED_TOKENS in description or "model_quant_type" in description:
            return path
    return None


def _stem(directory: Path) -> str:
    indices = sorted(directory.glob("quant_model_weight*.safetensors.index.json"))
    if indices:
        return indices[0].name.removesuffix(".safetensors.index.json")
    files = sorted(directory.glob("quant_model_weight*.safetensors"))
    return files[0].name.removesuffix(".safetensors") if files else "model"
