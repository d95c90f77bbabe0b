"""Quantises a floating-point checkpoint into a W8A8 one on disk, tensor by tensor.

The result is a compressed-tensors checkpoint that other engines load as well.
Memory holds one linear at a time, whatever the size of the model.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from qwen3_a8w8.checkpoint.compressed_tensors_scheme import w8a8_quantization_config
from qwen3_a8w8.checkpoint.hf_float import HfFloatReader
from qwen3_a8w8.checkpoint.model_files import ModelFiles, read_model_files
from qwen3_a8w8.checkpoint.names import (
    EMBED_TOKENS,
    FINAL_NORM,
    LAYER_NORM_NAMES,
    LINEAR_NAMES,
    LM_HEAD,
    linear_module,
    linear_shape,
    norm_tensor,
)
from qwen3_a8w8.checkpoint.new_directory import new_directory
from qwen3_a8w8.checkpoint.reader import check_finite
from qwen3_a8w8.checkpoint.writer import MAX_SHARD_BYTES, SafetensorsWriter, TensorSpec
from qwen3_a8w8.errors import CheckpointError

COPIED_FILES = (
    "generation_config.json",
    "tokenizer*",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "LICENSE*",
    "NOTICE*",
)
"""What goes along unchanged, as glob patterns."""


@dataclass(frozen=True, slots=True)
class QuantizeSummary:
    """What `quantize_checkpoint` did.

    Attributes:
        path: the new checkpoint.
        num_linears: linears quantised.
        source_bytes: size of the weight files read.
        written_bytes: size of the tensors written.
    """

    path: Path
    num_linears: int
    source_bytes: int
    written_bytes: int


def quantize_checkpoint(
    src: Path,
    dst: Path,
    on_progress: Callable[[int, int], None] | None = None,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> QuantizeSummary:
    """Writes the W8A8 version of a bf16, fp16 or fp32 checkpoint.

    Round to nearest, one scale per output channel, stored in the dtype of the weight it belongs
    to. Embedding, norms, lm_head, tokenizer, chat template and generation config are copied. The
    new directory appears under its name when it is complete and not before.

    Args:
        src: directory of the source.
        dst: directory to create; may exist if it is empty.
        on_progress: called with (layers done, layers in all) after every layer.
        max_shard_bytes: most bytes of tensors in one file.

    Raises:
        CheckpointError: the source can't be read or is quantised already; the target holds
            something, or can't be written.
    """
    src, dst = Path(src), Path(dst)
    model = read_model_files(src)
    if not HfFloatReader.recognises(model):
        raise CheckpointError(
            f"{src / 'config.json'}: the model is quantised already ({model.quantization!r:.200}), "
            "expected one with bf16, fp16 or fp32 weights"
        )
    reader = HfFloatReader(model)
    try:
        specs = _plan(model, reader)
        num_bytes = sum(spec.num_bytes for spec in specs)
        with new_directory(dst, num_bytes) as partial:
            with SafetensorsWriter(partial, specs, max_shard_bytes=max_shard_bytes) as writer:
                _write_tensors(model, reader, writer, on_progress)
            _write_other_files(model, partial)
    finally:
        reader.files.close()
    return QuantizeSummary(
        path=dst,
        num_linears=model.config.num_layers * len(LINEAR_NAMES),
        source_bytes=reader.files.num_bytes,
        written_bytes=num_bytes,
    )


def _plan(model: ModelFiles, reader: HfFloatReader) -> list[TensorSpec]:
    config = model.config
    specs: list[TensorSpec] = []

    def add_float(name: str) -> None:
        info = reader.files.infos[name]
        specs.append(TensorSpec(name, reader.files.stored_dtype(name), info.shape))

    add_float(EMBED_TOKENS)
    for layer in range(config.num_layers):
        for norm in LAYER_NORM_NAMES:
            add_float(norm_tensor(layer, norm))
        for linear in LINEAR_NAMES:
            weight = f"{linear_module(layer, linear)}.weight"
            num_out, num_in = linear_shape(config, linear)
            scale_dtype = reader.files.stored_dtype(weight)
            specs.append(TensorSpec(weight, torch.int8, (num_out, num_in)))
            specs.append(TensorSpec(f"{weight}_scale", scale_dtype, (num_out, 1)))
    add_float(FINAL_NORM)
    if not config.tie_word_embeddings:
        add_float(LM_HEAD)
    return specs


def _write_tensors(
    model: ModelFiles,
    reader: HfFloatReader,
    writer: SafetensorsWriter,
    on_progress: Callable[[int, int], None] | None,
) -> None:
    def copy_float(name: str) -> None:
        tensor = reader.files.read(name)
        check_finite(reader.files, name, tensor)
        writer.write(name, tensor)

    config = model.config
    copy_float(EMBED_TOKENS)
    for layer in range(config.num_layers):
        for norm in LAYER_NORM_NAMES:
            copy_float(norm_tensor(layer, norm))
        for name in LINEAR_NAMES:
            weight = f"{linear_module(layer, name)}.weight"
            scale_dtype = reader.files.stored_dtype(weight)
            # The scales are rounded before they are used, so storing them loses nothing.
            linear = reader.linear(layer, name, scale_dtype=scale_dtype)
            writer.write(weight, linear.w_q)
            writer.write(f"{weight}_scale", linear.w_scale.to(scale_dtype).unsqueeze(-1))
        if on_progress is not None:
            on_progress(layer + 1, config.num_layers)
    copy_float(FINAL_NORM)
    if not config.tie_word_embeddings:
        copy_float(LM_HEAD)


def _write_other_files(model: ModelFiles, target: Path) -> None:
    raw = {**model.raw_config, "quantization_config": w8a8_quantization_config()}
    (target / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
    for pattern in COPIED_FILES:
        for path in sorted(model.directory.glob(pattern)):
            if path.is_file():
                shutil.copyfile(path, target / path.name)
