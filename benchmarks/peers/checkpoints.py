"""Creates the random checkpoint, and its copy in the format of each engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.float_checkpoint import write_float_checkpoint
from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
from qwen3_a8w8.checkpoint.shapes import named_shape
from qwen3_a8w8.checkpoint.synth import synth_checkpoint
from qwen3_a8w8.errors import ConfigError

W8A8, BF16, GGUF, OPENVINO = "w8a8", "bf16", "q8_0.gguf", "openvino"


def prepare(shape: str, directory: Path, peers: Mapping[str, Path], root: Path) -> None:
    """Writes the missing checkpoints of the peers.

    Args:
        shape: a published size.
        directory: one checkpoint in all its formats.
        peers: name and virtual environment of each engine.
        root: the repository, from which modules of `benchmarks` are run.

    Raises:
        ConfigError: the shape isn't known, or the directory holds another one.
        CheckpointError: something can't be written.
        CalledProcessError: OpenVINO's conversion failed.
    """
    config = named_shape(shape)
    if not (directory / W8A8).exists():
        _say(directory / W8A8)
        synth_checkpoint(config, directory / W8A8)
    with open_checkpoint(directory / W8A8) as checkpoint:
        found = checkpoint.config
    if (found.hidden_size, found.num_layers) != (config.hidden_size, config.num_layers):
        raise ConfigError(
            f"{directory} holds a model of hidden size {found.hidden_size} with "
            f"{found.num_layers} layers, {shape} has {config.hidden_size} and "
            f"{config.num_layers}; give each shape a directory of its own"
        )
    # OpenVINO needs it for the conversion only, so it may be deleted afterwards.
    is_converted = "openvino_genai" not in peers or (directory / OPENVINO).exists()
    needs_bf16 = "transformers_bf16" in peers or not is_converted
    if needs_bf16 and not (directory / BF16).exists():
        _say(directory / BF16)
        write_float_checkpoint(directory / W8A8, directory / BF16)
    if {"llama_cpp", "ik_llama_cpp"} & peers.keys() and not (directory / GGUF).exists():
        # Needs a package that the other peers don't.
        from benchmarks.peers.gguf_file import write_q8_0

        _say(directory / GGUF)
        write_q8_0(directory / W8A8, directory / GGUF)
    if not is_converted:
        _say(directory / OPENVINO)
        python = peers["openvino_genai"] / "bin" / "python"
        module = "benchmarks.peers.openvino_convert"
        command = [str(python), "-m", module, str(directory / BF16), str(directory / OPENVINO)]
        subprocess.run(command, cwd=root, check=True)


def _say(path: Path) -> None:
    print(f"writing {path}", file=sys.stderr, flush=True)
