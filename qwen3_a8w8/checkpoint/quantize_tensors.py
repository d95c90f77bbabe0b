"""Which tensors a quantised checkpoint has: their names, dtypes and shapes, in file order."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from qwen3_a8w8.checkpoint.names import (
    EMBED_TOKENS,
    FINAL_NORM,
    LAYER_NORM_NAMES,
    LINEAR_NAMES,
    LM_HEAD,
    linear_module,
    norm_tensor,
)
from qwen3_a8w8.checkpoint.safetensors_file import SafetensorsFiles
from qwen3_a8w8.checkpoint.writer import TensorSpec
from qwen3_a8w8.config import ModelConfig


def outer_tensors(config: ModelConfig) -> list[str]:
    """Names of the tensors outside the layers."""
    return [EMBED_TOKENS, FINAL_NORM, *([] if config.tie_word_embeddings else [LM_HEAD])]


def planned_tensors(
    files: SafetensorsFiles, config: ModelConfig, kept: Collection[str]
) -> list[TensorSpec]:
    """All tensors to write: the embedding, layer by layer, and the tensors after the layers.

    Args:
        files: the source, whose dtypes are kept for scales and for unquantised tensors.
        config: of the model.
        kept: module paths of the linears that stay in floating point.
    """
    names = [EMBED_TOKENS]
    for layer in range(config.num_layers):
        names += _layer_tensors(layer)
    names += [name for name in outer_tensors(config) if name != EMBED_TOKENS]
    specs: list[TensorSpec] = []
    for name in names:
        dtype, shape = files.stored_dtype(name), files.infos[name].shape
        module = name.removesuffix(".weight")
        if module.endswith("_proj") and module not in kept:
            specs.append(TensorSpec(name, torch.int8, shape))
            specs.append(TensorSpec(f"{name}_scale", dtype, (shape[0], 1)))
        else:
            specs.append(TensorSpec(name, dtype, shape))
    return specs


def tensors_of_layers(specs: Sequence[TensorSpec], num_layers: int) -> set[str]:
    """Names of the planned tensors, scales included, of the first layers."""
    names = {name for layer in range(num_layers) for name in _layer_tensors(layer)}
    return {spec.name for spec in specs if spec.name.removesuffix("_scale") in names}


def _layer_tensors(layer: int) -> list[str]:
    norms = [norm_tensor(layer, name) for name in LAYER_NORM_NAMES]
    return norms + [f"{linear_module(layer, name)}.weight" for name in LINEAR_NAMES]
