"""Reads the small JSON files of a checkpoint, with errors that name the file.

Owns config.json and generation_config.json. Doesn't know about weights.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qwen3_a8w8.config import ModelConfig
from qwen3_a8w8.errors import CheckpointError

MAX_LAYERS = 1000
"""Most decoder layers; far above any published size, low enough to list their tensors."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A checkpoint's directory and the contents of its JSON files.

    Attributes:
        directory: where the checkpoint is.
        raw_config: config.json, unchanged.
        config: the architecture, with the eos ids of generation_config.json if there is one.
    """

    directory: Path
    raw_config: dict[str, Any]
    config: ModelConfig

    @property
    def quantization(self) -> Any:
        """The quantisation in config.json; None for a model in floating point."""
        # The second spelling is that of the first compressed-tensors releases.
        return self.raw_config.get("quantization_config") or self.raw_config.get(
            "compression_config"
        )


def read_model_files(directory: Path) -> ModelFiles:
    """Reads config.json and generation_config.json.

    Raises:
        CheckpointError: the directory or config.json is missing, a file isn't a JSON object, or
            the model isn't supported.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such directory, expected that of a checkpoint")
    path = directory / "config.json"
    if not path.is_file():
        raise CheckpointError(
            f"{path}: doesn't exist; expected a directory with config.json and safetensors files"
        )
    raw = read_json_object(path)
    architectures = raw.get("architectures")
    if architectures is not None and not isinstance(architectures, list):
        raise CheckpointError(
            f"{path}: field 'architectures' is {architectures!r}, expected a list of names"
        )
    config = ModelConfig.from_hf(raw, str(path))
    if config.num_layers > MAX_LAYERS:
        raise CheckpointError(
            f"{path}: field 'num_hidden_layers' is {config.num_layers}, expected at most "
            f"{MAX_LAYERS}"
        )
    eos_source = path
    generation = directory / "generation_config.json"
    if generation.is_file():
        eos = read_json_object(generation).get("eos_token_id")
        if eos is not None:
            eos_source = generation
            ids = tuple(eos) if isinstance(eos, list) else (eos,)
            config = replace(config, eos_token_ids=ids)
    for token_id in config.eos_token_ids:
        is_id = isinstance(token_id, int) and not isinstance(token_id, bool)
        if not is_id or not 0 <= token_id < config.vocab_size:
            raise CheckpointError(
                f"{eos_source}: eos_token_id {token_id!r} isn't a token, expected an integer "
                f"from 0 to {config.vocab_size - 1}"
            )
    return ModelFiles(directory, raw, config)


def read_json_object(path: Path) -> dict[str, Any]:
    """Reads a JSON file whose top level is an object.

    Raises:
        CheckpointError: it can't be read, isn't JSON, or isn't an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: expected JSON, found something else: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{path}: expected a JSON object, found {type(value).__name__} at the top level"
        )
    return value
