"""Writes a W8A8 checkpoint's weights as plain bf16, for engines with their own format.

`w = w_q * w_scale`, rounded to bf16: every engine quantises its own weights from it, so that all
have the same weights to within their formats.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from qwen3_a8w8.checkpoint.checkpoint import Checkpoint, open_checkpoint
from qwen3_a8w8.checkpoint.names import LINEAR_NAMES, float_tensors, linear_module, linear_weights
from qwen3_a8w8.checkpoint.new_directory import new_directory
from qwen3_a8w8.checkpoint.reader import FloatLinear
from qwen3_a8w8.checkpoint.writer import SafetensorsWriter, TensorSpec


def float_weight(checkpoint: Checkpoint, layer: int, name: str) -> torch.Tensor:
    """One linear as `[out, in]` bfloat16, whatever the checkpoint's format.

    Raises:
        CheckpointError: it can't be read.
    """
    linear = checkpoint.linear(layer, name, is_quantized_on_load=False)
    if isinstance(linear, FloatLinear):
        return linear.weight.to(torch.bfloat16)
    return (linear.w_q.float() * linear.w_scale[:, None]).to(torch.bfloat16)


def write_float_checkpoint(src: Path, dst: Path) -> None:
    """Writes the bf16 checkpoint, one tensor in memory at a time.

    Args:
        src: a checkpoint of any format.
        dst: directory to create.

    Raises:
        CheckpointError: the source can't be read, or the target not be written.
    """
    with open_checkpoint(src) as checkpoint:
        config = checkpoint.config
        shapes = {**float_tensors(config), **linear_weights(config)}
        specs = [TensorSpec(name, torch.bfloat16, shape) for name, shape in shapes.items()]
        with new_directory(dst, sum(spec.num_bytes for spec in specs)) as partial:
            with SafetensorsWriter(partial, specs) as writer:
                for name in float_tensors(config):
                    writer.write(name, checkpoint.tensor(name, dtype=torch.bfloat16))
                for layer in range(config.num_layers):
                    for name in LINEAR_NAMES:
                        weight = float_weight(checkpoint, layer, name)
                        writer.write(f"{linear_module(layer, name)}.weight", weight)
            raw = json.loads((src / "config.json").read_text(encoding="utf-8"))
            raw.pop("quantization_config", None)
            (partial / "config.json").write_text(json.dumps(raw, indent=2), encoding="utf-8")
            generation = "generation_config.json"
            (partial / generation).write_bytes((src / generation).read_bytes())
