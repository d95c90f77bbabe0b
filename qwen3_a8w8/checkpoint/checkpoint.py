"""Opens a checkpoint of any supported format.

The list of formats is `READERS`; the first that recognises a directory reads
it. `open_checkpoint` checks everything that config and headers contain, so that
errors appear before a long load and not after it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from qwen3_a8w8.checkpoint.compressed_tensors import CompressedTensorsReader
from qwen3_a8w8.checkpoint.hf_float import HfFloatReader
from qwen3_a8w8.checkpoint.model_files import ModelFiles, read_model_files
from qwen3_a8w8.checkpoint.modelslim import ModelSlimReader
from qwen3_a8w8.checkpoint.names import float_tensors, linear_module
from qwen3_a8w8.checkpoint.reader import (
    CheckpointReader,
    FloatLinear,
    Linear,
    LinearScheme,
    check_finite,
    open_reader,
)
from qwen3_a8w8.checkpoint.torchao import TorchAoReader
from qwen3_a8w8.closing import SelfClosing
from qwen3_a8w8.config import ModelConfig
from qwen3_a8w8.errors import CheckpointError

logger = logging.getLogger(__name__)

READERS: Sequence[type[CheckpointReader]] = (
    ModelSlimReader,
    CompressedTensorsReader,
    TorchAoReader,
    HfFloatReader,
)
"""All formats. To add one: a file with a `CheckpointReader`, and its name here."""


class Checkpoint(SelfClosing):
    """An open checkpoint with validated headers.

    Tensors are read one at a time, on demand; nothing is cached.

    Attributes:
        directory: where it is.
        config: the architecture, with the eos ids of generation_config.json if there is one.
        format: "hf-float", "compressed-tensors", "modelslim" or "torchao".
        notes: what a user should know about how it is read, a sentence each.
        fingerprint: 64 hex digits that change with the config, the headers, or the contents
            (of which samples are taken, not all); they don't depend on times or the path.
    """

    def __init__(self, model: ModelFiles, reader: CheckpointReader) -> None:
        self.directory: Path = model.directory
        self.config: ModelConfig = model.config
        self.format: str = reader.format
        self.notes: tuple[str, ...] = reader.notes
        self._reader = reader
        self._float_names = float_tensors(model.config)
        digest = hashlib.sha256(reader.format.encode())
        digest.update(json.dumps(model.raw_config, sort_keys=True).encode())
        digest.update(json.dumps(model.config.eos_token_ids).encode())
        if model.config.tie_word_embeddings != bool(model.raw_config.get("tie_word_embeddings")):
            digest.update(b"lm_head of its own")
        reader.files.update_digest(digest)
        self.fingerprint: str = digest.hexdigest()

    @property
    def num_bytes(self) -> int:
        """Size of the weight files, in bytes."""
        return self._reader.files.num_bytes

    @property
    def schemes(self) -> Mapping[tuple[int, str], LinearScheme]:
        """How each linear is stored, by layer and name."""
        return self._reader.schemes

    @property
    def float_linears(self) -> list[tuple[int, str]]:
        """Linears that run in bfloat16, as (layer, name)."""
        return [key for key, scheme in self.schemes.items() if scheme.is_float]

    def linear(self, layer: int, name: str, *, is_quantized_on_load: bool = True) -> Linear:
        """Reads one linear, quantising it if the whole checkpoint is in floating point.

        Args:
            layer: 0 to `config.num_layers - 1`.
            name: one of `names.LINEAR_NAMES`.
            is_quantized_on_load: False returns linears of a floating-point checkpoint unchanged,
                in their own dtype.

        Returns:
            `w_q` int8 `[out, in]` and `w_scale` float32 `[out]`; or, for one of
            `float_linears`, `weight` bfloat16 `[out, in]`.

        Raises:
            CheckpointError: the values aren't finite, or can't be read.
            ValueError: there is no such linear.
        """
        if not is_quantized_on_load and self.format == HfFloatReader.format:
            tensor = f"{linear_module(layer, name)}.weight"
            weight = self._reader.files.read(tensor)
            check_finite(self._reader.files, tensor, weight)
            return FloatLinear(weight)
        return self._reader.linear(layer, name)

    def tensor(self, name: str, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Reads a tensor that stays in floating point: embedding, norm or lm_head.

        Args:
            name: its full name, such as `model.norm.weight`; see `names.float_tensors`.
            dtype: dtype of the result. None: float32 for norms, bfloat16 for `[vocab, hidden]`
                matrices. Published checkpoints store those in bfloat16, so nothing is lost;
                from float32 or float16 ones they are rounded. Pass float32 to keep all digits.

        Returns:
            The tensor, contiguous. It may share memory with the mapped file: don't write to it.

        Raises:
            CheckpointError: the values aren't finite, or can't be read.
            ValueError: the model has no such tensor (a tied lm_head is `EMBED_TOKENS`).
        """
        if name not in self._float_names:
            raise ValueError(f"{name!r} isn't a floating-point tensor of this model")
        files = self._reader.files
        if dtype is None:
            dtype = torch.float32 if len(self._float_names[name]) == 1 else torch.bfloat16
        stored = self._reader.aliases.get(name, name)
        tensor = files.read(stored).to(dtype)
        check_finite(files, stored, tensor)
        return tensor

    def close(self) -> None:
        """Refuses further reads. Idempotent; tensors read before stay valid."""
        self._reader.files.close()


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens the checkpoint in a directory and checks everything but the tensors' values.

    Args:
        path: directory with config.json and safetensors files; see `resolve_model`.

    Raises:
        CheckpointError: no such directory; not a Qwen3 dense model; an unsupported format; a
            damaged file; a missing, misshapen or unexpected tensor.
    """
    try:
        model = read_model_files(Path(path))
        for reader_class in READERS:
            if reader_class.recognises(model):
                checkpoint = Checkpoint(*open_reader(model, reader_class))
                for note in checkpoint.notes:
                    logger.warning("%s: %s", model.directory, note)
                return checkpoint
    except OSError as error:
        raise CheckpointError(f"{path}: can't be read: {error}") from error
    quantization = model.quantization
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    raise CheckpointError(
        f"{model.directory / 'config.json'}: quantization method {method!r} isn't supported, "
        "expected 'compressed-tensors' (W8A8), 'torchao' (int8 dynamic), none (bf16, fp16 or fp32 "
        "weights), or a ModelSlim checkpoint with its quant_model_description.json"
    )
