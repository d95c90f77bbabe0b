"""Writes a W8A8 checkpoint of any shape with random weights, for measuring size and speed.

The weights are scaled so that every linear keeps the magnitude of its input, so
activations stay finite and differ between tokens; the text is nonsense. All values
are windows into a few tens of megabytes of random numbers, so that writing is
limited by the disk.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qwen3_a8w8.checkpoint.compressed_tensors_scheme import w8a8_quantization_config
from qwen3_a8w8.checkpoint.names import float_tensors, linear_weights
from qwen3_a8w8.checkpoint.new_directory import new_directory
from qwen3_a8w8.checkpoint.writer import MAX_SHARD_BYTES, SafetensorsWriter, TensorSpec
from qwen3_a8w8.config import ModelConfig

_NUM_VALUES = 33_554_393
"""Random numbers drawn. A prime: rows of any width start at different offsets, so that all rows
of a matrix differ."""

_PIECE_BYTES = 64 << 20
_Q_STD = 32.0  # about what scaling each channel to its largest of some thousand normal values gives


@dataclass(frozen=True, slots=True)
class SynthSummary:
    """The result of `synth_checkpoint`.

    Attributes:
        path: the new checkpoint.
        num_linears: int8 linears in it.
        written_bytes: size of the tensors written.
    """

    path: Path
    num_linears: int
    written_bytes: int


def synth_checkpoint(
    config: ModelConfig,
    dst: Path,
    on_progress: Callable[[int, int], None] | None = None,
    *,
    seed: int = 0,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> SynthSummary:
    """Writes a random compressed-tensors checkpoint, without tokenizer.

    Needs well below 1 GiB of memory for any shape. The new directory appears under its name
    only when it is complete.

    Args:
        config: the shape; see `shapes.SHAPES`.
        dst: directory to create; may exist if it is empty.
        on_progress: called with (bytes done, total bytes) after every tensor.
        seed: the same seed gives the same files.
        max_shard_bytes: most bytes of tensors in one file.

    Raises:
        CheckpointError: the target isn't empty, there is too little space, or it can't be
            written.
    """
    dst = Path(dst)
    specs = _plan(config)
    num_bytes = sum(spec.num_bytes for spec in specs)
    with new_directory(dst, num_bytes) as partial:
        with SafetensorsWriter(partial, specs, max_shard_bytes=max_shard_bytes) as writer:
            values = _Values(seed, config)
            done = 0
            for spec in specs:
                writer.write_rows(spec.name, values.pieces(spec))
                done += spec.num_bytes
                if on_progress is not None:
                    on_progress(done, num_bytes)
        _write_config_files(config, partial)
    return SynthSummary(dst, len(linear_weights(config)), num_bytes)


class _Values:
    """Random tensors of every kind that the checkpoint has."""

    def __init__(self, seed: int, config: ModelConfig) -> None:
        self._rng = np.random.default_rng(seed)
        self._shapes = linear_weights(config)
        normal = np.empty(_NUM_VALUES, np.int8)
        floats = torch.empty(_NUM_VALUES, dtype=torch.bfloat16)
        step = 1 << 22
        for start in range(0, _NUM_VALUES, step):
            count = min(step, _NUM_VALUES - start)
            drawn = self._rng.standard_normal(count, np.float32)
            normal[start : start + count] = np.clip(np.rint(drawn * _Q_STD), -127, 127)
            floats[start : start + count] = torch.from_numpy(drawn)
        self._int8 = torch.from_numpy(normal)
        # Scale of the embedding and of the logits.
        self._table = floats.mul_(1.0 / math.sqrt(config.hidden_size))

    def pieces(self, spec: TensorSpec) -> Iterator[torch.Tensor]:
        """The values of one tensor, in slices along its first axis."""
        if spec.dtype == torch.int8:
            yield from self._windows(self._int8, spec)
        elif spec.name.endswith("_scale"):
            yield self._scales(spec)
        elif len(spec.shape) == 1:
            # Norms: around one, and all different, so that swapping them changes the result.
            yield torch.from_numpy(self._rng.uniform(0.5, 1.5, spec.shape)).to(spec.dtype)
        else:
            yield from self._windows(self._table, spec)

    def _scales(self, spec: TensorSpec) -> torch.Tensor:
        _, in_features = self._shapes[spec.name.removesuffix("_scale")]
        unit = 1.0 / (_Q_STD * math.sqrt(in_features))
        spread = torch.from_numpy(self._rng.uniform(0.5, 1.5, spec.shape))
        return (spread * unit).to(spec.dtype)

    def _windows(self, block: torch.Tensor, spec: TensorSpec) -> Iterator[torch.Tensor]:
        num_rows, width = spec.shape
        at = int(self._rng.integers(len(block)))
        rows_per_piece = max(1, _PIECE_BYTES // (width * spec.dtype.itemsize))
        for start in range(0, num_rows, rows_per_piece):
            rows = min(rows_per_piece, num_rows - start)
            yield _window(block, at, rows * width).reshape(rows, width)
            at = (at + rows * width) % len(block)


def _window(block: torch.Tensor, start: int, count: int) -> torch.Tensor:
    """`count` values from `start`, wrapping around."""
    parts = []
    while count > 0:
        part = block[start : start + count]
        parts.append(part)
        count -= len(part)
        start = 0
    return torch.cat(parts)


def _plan(config: ModelConfig) -> list[TensorSpec]:
    specs = [
        TensorSpec(name, torch.bfloat16, shape) for name, shape in float_tensors(config).items()
    ]
    for name, shape in linear_weights(config).items():
        specs.append(TensorSpec(name, torch.int8, shape))
        specs.append(TensorSpec(f"{name}_scale", torch.bfloat16, (shape[0], 1)))
    return specs


def _write_config_files(config: ModelConfig, directory: Path) -> None:
    eos = list(config.eos_token_ids)
    raw: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": "bfloat16",
        "eos_token_id": eos[0] if eos else None,
        "quantization_config": w8a8_quantization_config(),
    }
    generation = {"do_sample": False, "eos_token_id": eos or None}
    for name, content in (("config.json", raw), ("generation_config.json", generation)):
        text = json.dumps(content, indent=2) + "\n"
        (directory / name).write_text(text, encoding="utf-8")
