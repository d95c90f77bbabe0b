"""Writes a bf16 checkpoint as a GGUF file in Q8_0, as llama.cpp's own quantiser would.

Every matrix is Q8_0 (blocks of 32 along the input, one float16 scale each), the embedding and
with it a tied lm_head too; norms are float32. There is no vocabulary: prompts are ids.

Source: the GGUF specification, and the names of the `gguf` package.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import torch

from benchmarks.peers.float_checkpoint import float_weight
from qwen3_a8w8.checkpoint.checkpoint import Checkpoint, open_checkpoint
from qwen3_a8w8.checkpoint.names import (
    EMBED_TOKENS,
    FINAL_NORM,
    LAYER_NORM_NAMES,
    LINEAR_NAMES,
    LM_HEAD,
    float_tensors,
    linear_shape,
    norm_tensor,
)
from qwen3_a8w8.config import ModelConfig

_LINEARS = dict(
    zip(
        LINEAR_NAMES,
        ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
        strict=True,
    )
)
_NORMS = dict(
    zip(LAYER_NORM_NAMES, ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"), strict=True)
)
_WHOLE = {EMBED_TOKENS: "token_embd", FINAL_NORM: "output_norm", LM_HEAD: "output"}
_Q8_0 = gguf.GGMLQuantizationType.Q8_0


def write_q8_0(src: Path, dst: Path) -> None:
    """Writes the file, one tensor in memory at a time.

    Args:
        src: a checkpoint of any format.
        dst: the file; it appears under its name when it is complete.

    Raises:
        CheckpointError: the source can't be read.
    """
    partial = dst.with_name(f"{dst.name}.partial")
    with open_checkpoint(src) as checkpoint:
        writer = gguf.GGUFWriter(partial, "qwen3")
        _add_metadata(writer, checkpoint.config)
        for name, shape in _shapes(checkpoint.config):
            _add_info(writer, name, shape)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in _tensors(checkpoint):
            values = tensor.float().numpy()
            writer.write_tensor_data(
                values if values.ndim == 1 else gguf.quants.quantize(values, _Q8_0)
            )
        writer.close()
    partial.replace(dst)


def _add_metadata(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")


def _add_info(writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...]) -> None:
    if len(shape) == 1:
        writer.add_tensor_info(name, shape, np.dtype(np.float32), shape[0] * 4)
        return
    # The package wants the shape in bytes of a type that is no element type.
    byte_shape = gguf.quant_shape_to_byte_shape(shape, _Q8_0)
    num_bytes = int(np.prod(byte_shape))
    writer.add_tensor_info(name, byte_shape, np.dtype(np.uint8), num_bytes, raw_dtype=_Q8_0)


def _shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """GGUF names and shapes `(out, in)`, in the order of `_tensors`."""
    floats = float_tensors(config)
    for name in _WHOLE:
        if name in floats:
            yield f"{_WHOLE[name]}.weight", floats[name]
    for layer in range(config.num_layers):
        for name, ours in _NORMS.items():
            yield f"blk.{layer}.{ours}.weight", floats[norm_tensor(layer, name)]
        for name, ours in _LINEARS.items():
            yield f"blk.{layer}.{ours}.weight", linear_shape(config, name)


def _tensors(checkpoint: Checkpoint) -> Iterator[torch.Tensor]:
    floats = float_tensors(checkpoint.config)
    for name in _WHOLE:
        if name in floats:
            yield checkpoint.tensor(name)
    for layer in range(checkpoint.config.num_layers):
        for name in _NORMS:
            yield checkpoint.tensor(norm_tensor(layer, name))
        for name in _LINEARS:
            yield float_weight(checkpoint, layer, name)
