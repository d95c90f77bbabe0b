"""Quantises a floating-point checkpoint to a W8A8 checkpoint on disk, layer by layer.

The result is a compressed-tensors checkpoint that other engines load as well.
Memory holds one layer at a time, whatever the size of the model; an interrupted
run continues where it stopped. `quantize_layer.py` quantises a layer,
`calibration_states.py` passes calibration data through the layers.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from qwen3_a8w8.checkpoint.calibration_states import CalibrationStates
from qwen3_a8w8.checkpoint.compressed_tensors_scheme import w8a8_quantization_config
from qwen3_a8w8.checkpoint.hf_float import HfFloatReader
from qwen3_a8w8.checkpoint.model_files import ModelFiles, read_model_files
from qwen3_a8w8.checkpoint.names import (
    EMBED_TOKENS,
    LAYER_NORM_NAMES,
    LINEAR_NAMES,
    linear_module,
    linear_modules,
    norm_tensor,
)
from qwen3_a8w8.checkpoint.new_directory import check_is_new
from qwen3_a8w8.checkpoint.quantize_layer import QuantizedLayer, quantize_layer
from qwen3_a8w8.checkpoint.quantize_options import QuantizeOptions, check_token_ids
from qwen3_a8w8.checkpoint.quantize_progress import Progress
from qwen3_a8w8.checkpoint.quantize_report import REPORT_FILE, write_report
from qwen3_a8w8.checkpoint.quantize_tensors import (
    outer_tensors,
    planned_tensors,
    tensors_of_layers,
)
from qwen3_a8w8.checkpoint.reader import FloatLinear, check_finite, open_reader
from qwen3_a8w8.checkpoint.writer import MAX_SHARD_BYTES, SafetensorsWriter
from qwen3_a8w8.config import ModelConfig
from qwen3_a8w8.errors import CheckpointError

logger = logging.getLogger(__name__)

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
"""Files copied unchanged from the source, as glob patterns."""


@dataclass(frozen=True, slots=True)
class QuantizeSummary:
    """The result of `quantize_checkpoint`.

    Attributes:
        path: the new checkpoint.
        num_linears: linears quantised.
        num_kept: linears left in floating point.
        source_bytes: size of the weight files read.
        written_bytes: size of the tensors written.
        report: the report on every linear, a JSON file in `path`.
        suggested_keep_float: linears that may be worth keeping in floating point, worst first.
    """

    path: Path
    num_linears: int
    num_kept: int
    source_bytes: int
    written_bytes: int
    report: Path
    suggested_keep_float: tuple[str, ...]


def quantize_checkpoint(
    src: Path,
    dst: Path,
    on_progress: Callable[[int, int], None] | None = None,
    *,
    options: QuantizeOptions | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> QuantizeSummary:
    """Writes the W8A8 version of a bf16, fp16 or fp32 checkpoint.

    One scale per output channel, stored in the dtype of the weight it belongs to. Embedding,
    lm_head, tokenizer, chat template and generation config are copied; norms too, unless they are
    smoothed. The new directory appears under its name only when it is complete. An interrupted
    run leaves `.NAME.partial` next to it, and the same call continues from there.

    Args:
        src: directory of the source.
        dst: directory to create; may exist if it is empty.
        on_progress: called with (layers done, total layers) after every layer.
        options: method and its parameters; default: round to nearest, no calibration.
        max_shard_bytes: most bytes of tensors in one file.

    Raises:
        CheckpointError: the source can't be read or is quantised already; the target isn't
            empty, or can't be written.
        ConfigError: the calibration data doesn't belong to the model.
    """
    src, dst = Path(src), Path(dst)
    options = options or QuantizeOptions()
    model = read_model_files(src)
    if not HfFloatReader.recognises(model):
        raise CheckpointError(
            f"{src / 'config.json'}: the model is quantised already ({model.quantization!r:.200}), "
            "expected one with bf16, fp16 or fp32 weights"
        )
    check_is_new(dst)
    check_token_ids(options.calibration, model.config.vocab_size)
    model, reader = open_reader(model, HfFloatReader)
    for note in reader.notes:
        logger.warning("%s: %s", src, note)
    try:
        return _Quantisation(model, reader, dst, options, max_shard_bytes).run(on_progress)
    except OSError as error:
        raise CheckpointError(f"{dst}: can't be written: {error}") from error
    finally:
        reader.files.close()


class _Quantisation:
    """One run: its source, its target and its progress."""

    def __init__(
        self,
        model: ModelFiles,
        reader: HfFloatReader,
        target: Path,
        options: QuantizeOptions,
        max_shard_bytes: int,
    ) -> None:
        self._model = model
        self._config: ModelConfig = model.config
        self._files = reader.files
        self._target = target
        self._options = options
        self._max_shard_bytes = max_shard_bytes
        self._kept = [m for m in linear_modules(model.config) if options.is_kept(m)]
        self._specs = planned_tensors(reader.files, model.config, self._kept)
        self._progress = Progress(target, self._key())
        self._states = CalibrationStates(model.config, options.calibration, self._progress)

    def run(self, on_progress: Callable[[int, int], None] | None) -> QuantizeSummary:
        num_bytes = sum(spec.num_bytes for spec in self._specs)
        progress, num_layers = self._progress, self._config.num_layers
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self._target.parent).free
            if progress.layers_done == 0 and free < num_bytes + self._states.num_bytes:
                raise CheckpointError(
                    f"{self._target}: the quantised checkpoint needs {num_bytes} bytes and the "
                    f"calibration temporarily {self._states.num_bytes}, {free} are free there"
                )
            if progress.layers_done:
                logger.info("%s: continuing at layer %d", progress.directory, progress.layers_done)
            progress.start()
            with SafetensorsWriter(
                progress.directory,
                self._specs,
                max_shard_bytes=self._max_shard_bytes,
                written=tensors_of_layers(self._specs, progress.layers_done),
            ) as writer:
                if self._options.calibration and progress.layers_done == 0:
                    self._states.embed(self._read(EMBED_TOKENS))
                for layer in range(progress.layers_done, num_layers):
                    result = self._quantise_layer(layer)
                    self._write_layer(writer, layer, result)
                    writer.sync()
                    progress.finish_layer(result.reports)
                    if on_progress is not None:
                        on_progress(layer + 1, num_layers)
                for name in outer_tensors(self._config):
                    writer.write(name, self._read(name))
            suggestion = self._write_other_files()
            progress.complete(self._target)
        except CheckpointError:
            # The source or the target is invalid: there is nothing to continue.
            progress.remove()
            raise
        return QuantizeSummary(
            path=self._target,
            num_linears=num_layers * len(LINEAR_NAMES) - len(self._kept),
            num_kept=len(self._kept),
            source_bytes=self._files.num_bytes,
            written_bytes=num_bytes,
            report=self._target / REPORT_FILE,
            suggested_keep_float=tuple(suggestion),
        )

    def _quantise_layer(self, layer: int) -> QuantizedLayer:
        weights = {
            name: self._read(f"{linear_module(layer, name)}.weight") for name in LINEAR_NAMES
        }
        norms = {name: self._read(norm_tensor(layer, name)) for name in LAYER_NORM_NAMES}
        statistics = None
        if self._options.calibration:
            statistics = self._states.observe(
                layer, {**weights, **norms}, has_hessians=self._options.compensates
            )
        try:
            result = quantize_layer(layer, weights, norms, statistics, self._options)
        except ValueError as error:
            raise CheckpointError(f"{self._files.directory}: layer {layer}: {error}") from error
        if self._options.calibration and layer + 1 < self._config.num_layers:
            self._states.advance(layer, result)
        return result

    def _read(self, name: str) -> torch.Tensor:
        tensor = self._files.read(name)
        check_finite(self._files, name, tensor)
        return tensor

    def _write_layer(self, writer: SafetensorsWriter, layer: int, result: QuantizedLayer) -> None:
        for norm, tensor in result.norms.items():
            writer.write(norm_tensor(layer, norm), tensor)
        for name, linear in result.linears.items():
            weight = f"{linear_module(layer, name)}.weight"
            dtype = self._files.stored_dtype(weight)
            if isinstance(linear, FloatLinear):
                writer.write(weight, linear.weight)
                continue
            # The scales were rounded before use, so storing them loses nothing.
            writer.write(weight, linear.w_q)
            writer.write(f"{weight}_scale", linear.w_scale.to(dtype).unsqueeze(-1))

    def _write_other_files(self) -> list[str]:
        directory, options = self._progress.directory, self._options
        quantization = w8a8_quantization_config(["lm_head", *self._kept])
        raw = {
            **self._model.raw_config,
            "tie_word_embeddings": self._config.tie_word_embeddings,
            "quantization_config": quantization,
        }
        text = json.dumps(raw, indent=2) + "\n"
        (directory / "config.json").write_text(text, encoding="utf-8")
        _copy_other_files(self._model.directory, directory)
        settings = {
            "method": options.method,
            "scale_search": options.scale_search,
            "keep_float": list(options.keep_float),
            "calibration_sequences": len(options.calibration),
            "calibration_tokens": sum(len(ids) for ids in options.calibration),
            "alpha": options.alpha,
            "damping": options.damping,
        }
        return write_report(directory / REPORT_FILE, self._progress.reports, settings)

    def _key(self) -> str:
        digest = hashlib.sha256(self._options.digest().encode())
        digest.update(json.dumps(self._model.raw_config, sort_keys=True).encode())
        digest.update(str(self._max_shard_bytes).encode())
        self._files.update_digest(digest)
        return digest.hexdigest()


def _copy_other_files(source: Path, target: Path) -> None:
    """Copies what quantising doesn't change: tokenizer, template, licence."""
    for pattern in COPIED_FILES:
        for path in sorted(source.glob(pattern)):
            if path.is_file():
                shutil.copyfile(path, target / path.name)
