"""Reports a checkpoint's contents and memory needs from its headers, without reading weights.

`inspect_checkpoint` returns an `Inspection`; the command line prints it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from qwen3_a8w8.checkpoint.checkpoint import Checkpoint
from qwen3_a8w8.checkpoint.names import LINEAR_NAMES, float_tensors, linear_shape
from qwen3_a8w8.config import EngineConfig, ModelConfig
from qwen3_a8w8.runner.sizing import kv_block_bytes, max_model_len, num_kv_blocks

_BF16, _F32 = 2, 4


@dataclass(frozen=True, slots=True)
class SchemeGroup:
    """Linears with the same storage scheme.

    Attributes:
        scheme: description of the scheme.
        is_float: whether they run in bf16.
        count: number of linears.
        num_bytes: size of their weights in memory.
        linears: their names, e.g. "down_proj: layers 0, 3-5".
    """

    scheme: str
    is_float: bool
    count: int
    num_bytes: int
    linears: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result.

    Attributes:
        path: the checkpoint's directory.
        format: its format.
        notes: what is converted while reading.
        fingerprint: of the checkpoint.
        num_parameters: weights of the model, a tied lm_head counted once.
        file_bytes: size of the weight files.
        groups: the linears by scheme.
        weight_bytes: all weights and tables in memory once loaded.
        free_bytes: memory assumed to be free before loading.
        block_size: tokens per KV block.
        kv_cache_dtype: its elements, "int8" or "bf16".
        kv_block_bytes: size of one block.
        max_model_len: longest sequence.
        num_kv_blocks: KV blocks that will be allocated, including the scratch block.
        num_kv_tokens: tokens that fit these blocks.
    """

    path: str
    format: str
    notes: tuple[str, ...]
    fingerprint: str
    num_parameters: int
    file_bytes: int
    groups: tuple[SchemeGroup, ...]
    weight_bytes: int
    free_bytes: int
    block_size: int
    kv_cache_dtype: str
    kv_block_bytes: int
    max_model_len: int
    num_kv_blocks: int
    num_kv_tokens: int

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return asdict(self)


def inspect_checkpoint(checkpoint: Checkpoint, engine: EngineConfig, free_bytes: int) -> Inspection:
    """Inspects an open checkpoint.

    Args:
        checkpoint: open; only headers and config are used.
        engine: options to run it with (block size, context, number of blocks).
        free_bytes: device memory that is free before the weights are loaded.

    Raises:
        ConfigError: weights and one KV block don't fit into the memory, or `max_model_len` is
            more than the checkpoint supports.
    """
    model = checkpoint.config
    groups = _groups(checkpoint)
    longest = max_model_len(model, engine)
    weight_bytes = sum(group.num_bytes for group in groups) + _other_bytes(model, longest)
    block_bytes = kv_block_bytes(model, engine.block_size, is_bf16=engine.has_bf16_kv_cache)
    blocks = num_kv_blocks(engine, model, longest, max(0, free_bytes - weight_bytes))
    return Inspection(
        path=str(checkpoint.directory),
        format=checkpoint.format,
        notes=checkpoint.notes,
        fingerprint=checkpoint.fingerprint,
        num_parameters=_num_parameters(model),
        file_bytes=checkpoint.num_bytes,
        groups=groups,
        weight_bytes=weight_bytes,
        free_bytes=free_bytes,
        block_size=engine.block_size,
        kv_cache_dtype="bf16" if engine.has_bf16_kv_cache else "int8",
        kv_block_bytes=block_bytes,
        max_model_len=longest,
        num_kv_blocks=blocks,
        num_kv_tokens=(blocks - 1) * engine.block_size,
    )


def layer_ranges(layers: Iterable[int]) -> str:
    """Layer numbers as ranges, e.g. "0, 3-5"."""
    spans: list[list[int]] = []
    for layer in sorted(layers):
        if spans and spans[-1][1] == layer - 1:
            spans[-1][1] = layer
        else:
            spans.append([layer, layer])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _groups(checkpoint: Checkpoint) -> tuple[SchemeGroup, ...]:
    members: dict[tuple[str, bool], list[tuple[int, str]]] = {}
    for key, scheme in checkpoint.schemes.items():
        members.setdefault((scheme.description, scheme.is_float), []).append(key)
    groups = []
    for (description, is_float), keys in members.items():
        lines = []
        for name in LINEAR_NAMES:
            layers = [layer for layer, found in keys if found == name]
            if layers:
                lines.append(f"{name}: layers {layer_ranges(layers)}")
        size = sum(_linear_bytes(checkpoint.config, name, is_float) for _, name in keys)
        groups.append(SchemeGroup(description, is_float, len(keys), size, tuple(lines)))
    return tuple(groups)


def _linear_bytes(model: ModelConfig, name: str, is_float: bool) -> int:
    num_out, num_in = linear_shape(model, name)
    return num_out * num_in * _BF16 if is_float else num_out * (num_in + _F32)


def _other_bytes(model: ModelConfig, max_model_len: int) -> int:
    total = max_model_len * model.head_dim * _F32  # rotary table
    for shape in float_tensors(model).values():
        size = 1
        for extent in shape:
            size *= extent
        total += size * (_F32 if len(shape) == 1 else _BF16)
    return total


def _num_parameters(model: ModelConfig) -> int:
    shapes = [linear_shape(model, name) for name in LINEAR_NAMES]
    linears = model.num_layers * sum(num_out * num_in for num_out, num_in in shapes)
    others = 0
    for shape in float_tensors(model).values():
        others += shape[0] * (shape[1] if len(shape) > 1 else 1)
    return linears + others
