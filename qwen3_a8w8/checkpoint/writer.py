"""Writes safetensors files tensor by tensor, in shards, with one tensor in memory at a time.

Names, dtypes and shapes are declared first, so that every header is known before
the first value; values can then be written in any order, directly to their offset.
This module doesn't know what the tensors are.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import torch

from qwen3_a8w8.checkpoint.safetensors_header import DTYPES, encode_header

MAX_SHARD_BYTES = 2 << 30
"""Most bytes of tensors in one file, unless a single tensor is larger."""

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Declaration of a tensor before its values are written.

    Attributes:
        name: its full name.
        dtype: its dtype.
        shape: its shape.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size of its values."""
        return math.prod(self.shape) * self.dtype.itemsize


class SafetensorsWriter:
    """Writes one set of tensors into `model.safetensors`, or into shards with an index.

    Args:
        directory: where to write; must exist.
        specs: all tensors that will be written, in the order in which shards are filled.
        max_shard_bytes: see `MAX_SHARD_BYTES`.
        written: names of tensors that an earlier writer with the same specs has written there;
            this writer continues its files.
    """

    def __init__(
        self,
        directory: Path,
        specs: Sequence[TensorSpec],
        *,
        max_shard_bytes: int = MAX_SHARD_BYTES,
        written: Collection[str] = (),
    ) -> None:
        self._directory = directory
        self._specs = {spec.name: spec for spec in specs}
        self._pending = set(self._specs) - set(written)
        self._is_resumed = bool(written)
        self._places: dict[str, tuple[BinaryIO, int]] = {}
        self._files: list[BinaryIO] = []
        shards = _plan_shards(specs, max_shard_bytes)
        weight_map: dict[str, str] = {}
        for number, shard in enumerate(shards, start=1):
            file_name = (
                "model.safetensors"
                if len(shards) == 1
                else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            )
            self._start_file(file_name, shard)
            weight_map.update({spec.name: file_name for spec in shard})
        if len(shards) > 1:
            index = {
                "metadata": {"total_size": sum(spec.num_bytes for spec in specs)},
                "weight_map": dict(sorted(weight_map.items())),
            }
            path = directory / "model.safetensors.index.json"
            path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Writes one tensor.

        Args:
            name: a declared name that isn't written yet.
            tensor: of the declared dtype and shape.

        Raises:
            ValueError: the tensor doesn't match its declaration, or was written before.
            OSError: it can't be written.
        """
        self.write_rows(name, [tensor])

    def write_rows(self, name: str, pieces: Iterable[torch.Tensor]) -> None:
        """Writes one tensor in slices, so that memory needn't hold all of it.

        Args:
            name: as for `write`.
            pieces: slices along the first axis, in order.

        Raises:
            ValueError: the slices don't match the declaration, or it was written before.
            OSError: it can't be written.
        """
        spec = self._specs.get(name)
        if spec is None or name not in self._pending:
            raise ValueError(f"tensor {name} wasn't declared, or was written before")
        file, position = self._places[name]
        file.seek(position)
        num_rows = 0
        for piece in pieces:
            num_rows += piece.shape[0]
            found = (num_rows, *piece.shape[1:])
            if piece.dtype != spec.dtype or found[1:] != spec.shape[1:] or num_rows > spec.shape[0]:
                raise ValueError(
                    f"tensor {name}: declared {spec.dtype} {spec.shape}, "
                    f"found {piece.dtype} {found}"
                )
            file.write(piece.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        if num_rows != spec.shape[0]:
            raise ValueError(
                f"tensor {name}: declared {spec.dtype} {spec.shape}, found {num_rows} rows"
            )
        self._pending.remove(name)

    def sync(self) -> None:
        """Syncs written data to the disk, so that it survives a crash."""
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Closes the files. Idempotent."""
        for file in self._files:
            file.close()
        self._files.clear()

    def __enter__(self) -> SafetensorsWriter:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the files.

        Raises:
            ValueError: a declared tensor is missing and no other error is being raised.
        """
        self.close()
        if kind is None and self._pending:
            raise ValueError(f"{len(self._pending)} declared tensors weren't written")

    def _start_file(self, file_name: str, shard: Sequence[TensorSpec]) -> None:
        # Wide dtypes first: readers map the file and need every tensor aligned to its elements.
        ordered = sorted(shard, key=lambda spec: -spec.dtype.itemsize)
        spans: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        position = 0
        for spec in ordered:
            end = position + spec.num_bytes
            spans[spec.name] = (_DTYPE_NAMES[spec.dtype], spec.shape, position, end)
            position = end
        header = encode_header(spans)
        file = (self._directory / file_name).open("r+b" if self._is_resumed else "wb")
        self._files.append(file)
        file.write(header)
        for name, (_, _, start, _) in spans.items():
            self._places[name] = (file, len(header) + start)


def _plan_shards(specs: Sequence[TensorSpec], max_shard_bytes: int) -> list[list[TensorSpec]]:
    shards: list[list[TensorSpec]] = []
    room = 0
    for spec in specs:
        if not shards or spec.num_bytes > room:
            shards.append([])
            room = max_shard_bytes
        shards[-1].append(spec)
        room -= spec.num_bytes
    return shards
