"""Opens a checkpoint's safetensors files, sharded or not, and reads tensors one at a time.

Headers are validated before the first tensor is read: that they parse, that
the files have the length that they state, that the index and the shards agree.
Reading maps the file, so that memory holds only what is in use. Only safetensors
is read: pickled files can run code.

This module doesn't know which tensors a model needs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from qwen3_a8w8.checkpoint.model_files import read_json_object
from qwen3_a8w8.checkpoint.safetensors_header import DTYPES, TensorInfo, read_header
from qwen3_a8w8.closing import SelfClosing
from qwen3_a8w8.errors import CheckpointError

_SAMPLES_PER_FILE = 64
_SAMPLE_BYTES = 4096
_PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True, slots=True)
class _Shard:
    path: Path
    header: bytes
    size: int


class SafetensorsFiles(SelfClosing):
    """The tensors of one checkpoint, by name, over one or more files.

    Args:
        directory: the checkpoint's directory.
        stem: name of the file without its suffix; `STEM.safetensors` is taken if it exists,
            otherwise the shards of `STEM.safetensors.index.json`.

    Raises:
        CheckpointError: no such file, only pickled ones, or a damaged or inconsistent one; the
            message names the file, the tensor if any, expected and found.
    """

    def __init__(self, directory: Path, stem: str = "model") -> None:
        self.directory = directory
        self._is_closed = False
        single = directory / f"{stem}.safetensors"
        index = directory / f"{stem}.safetensors.index.json"
        self.main_file = single if single.is_file() else index
        if single.is_file():
            shard_paths, weight_map = [single], None
        elif index.is_file():
            weight_map = _read_weight_map(index)
            shard_paths = [directory / name for name in sorted(set(weight_map.values()))]
        else:
            raise CheckpointError(_nothing_to_read(directory, stem))

        self._shards: list[_Shard] = []
        self.infos: dict[str, TensorInfo] = {}
        for path in shard_paths:
            if not path.is_file():
                listed = sum(name == path.name for name in (weight_map or {}).values())
                raise CheckpointError(
                    f"{index}: shard {path.name} doesn't exist in {directory}, but the index "
                    f"lists {listed} tensors in it; download the checkpoint again"
                )
            header, size, infos = read_header(path)
            self._shards.append(_Shard(path, header, size))
            for name, info in infos.items():
                if name in self.infos:
                    raise CheckpointError(
                        f"{path}: tensor {name} is already in {self.infos[name].path.name}; "
                        "expected it in one shard, found it in two"
                    )
                self.infos[name] = info
        for name, file_name in (weight_map or {}).items():
            found = self.infos.get(name)
            if found is None or found.path.name != file_name:
                where = "nowhere" if found is None else f"in {found.path.name}"
                raise CheckpointError(
                    f"{index}: tensor {name} is listed in {file_name}, found {where}; "
                    "index and shards don't belong together"
                )

    @property
    def num_bytes(self) -> int:
        """Size of all files, in bytes."""
        return sum(shard.size for shard in self._shards)

    def read(self, name: str) -> torch.Tensor:
        """Reads one tensor.

        Args:
            name: a key of `infos`.

        Returns:
            The tensor, contiguous. It may share memory with the mapped file: don't write to it.

        Raises:
            CheckpointError: there is no such tensor, it can't be read, or the files are closed.
        """
        if self._is_closed:
            raise CheckpointError(f"{self.directory}: the checkpoint is closed")
        info = self.infos.get(name)
        if info is None:
            raise CheckpointError(f"{self.main_file}: tensor {name} doesn't exist")
        try:
            # Reopened for every tensor: the mapping and its touched pages are freed with the
            # tensor, so that a pass over a large file needs little memory.
            with safe_open(str(info.path), framework="pt", device="cpu") as file:
                tensor: torch.Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{info.path}: tensor {name} can't be read: {error}") from error
        if tuple(tensor.shape) != info.shape or tensor.dtype != DTYPES.get(info.dtype):
            raise CheckpointError(
                f"{info.path}: tensor {name}: expected {info.dtype} {list(info.shape)} as when the "
                f"checkpoint was opened, found {tensor.dtype} {list(tensor.shape)}; the file was "
                "replaced since"
            )
        return tensor

    def stored_dtype(self, name: str) -> torch.dtype:
        """The dtype in which the tensor `name` is stored.

        Raises:
            CheckpointError: there is no such tensor, or torch doesn't know its dtype.
        """
        info = self.infos.get(name)
        if info is None or info.dtype not in DTYPES:
            found = "none" if info is None else info.dtype
            raise CheckpointError(f"{self.main_file}: tensor {name}: no known dtype, found {found}")
        return DTYPES[info.dtype]

    def update_digest(self, digest: hashlib._Hash) -> None:
        """Updates `digest` with what identifies the files, without reading all of them.

        Names, sizes and headers; and, because two fine-tunes of one model share all of these,
        64 samples of 4 KiB from every file.
        """
        for shard in self._shards:
            digest.update(f"{shard.path.name}\0{shard.size}\0".encode())
            digest.update(shard.header)
            step = max(1, shard.size // _SAMPLES_PER_FILE)
            with shard.path.open("rb") as file:
                for offset in range(0, shard.size, step):
                    digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, offset))

    def close(self) -> None:
        """Refuses further reads. Idempotent; tensors read before stay valid."""
        self._is_closed = True


def _read_weight_map(index: Path) -> Mapping[str, str]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{index}: field 'weight_map' is {type(weight_map).__name__}, expected an object "
            "from tensor names to file names"
        )
    for name, file_name in weight_map.items():
        # A plain name: an index must not reach outside its own directory.
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise CheckpointError(
                f"{index}: tensor {name} is listed in {file_name!r}, expected the plain name of "
                "a file in the same directory"
            )
    return weight_map


def _nothing_to_read(directory: Path, stem: str) -> str:
    names = sorted(entry.name for entry in directory.iterdir() if entry.is_file())
    expected = f"expected {stem}.safetensors or {stem}.safetensors.index.json"
    pickled = [name for name in names if name.endswith(_PICKLED_SUFFIXES)]
    others = [name for name in names if name.endswith(".safetensors")]
    if others:
        return f"{directory}: {expected}, found {_some(others)}"
    if pickled:
        return (
            f"{directory}: {expected}, found only pickled weights ({_some(pickled)}). Pickled "
            "files can run code and are never loaded; convert them on a machine where you trust "
            "them: AutoModelForCausalLM.from_pretrained(SRC).save_pretrained(DST)"
        )
    return f"{directory}: {expected}, found no weights"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
