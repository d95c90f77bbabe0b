"""The header of a safetensors file: parsed, checked against the file, and written.

A file is an 8-byte little-endian length, that many bytes of JSON, and the
tensors' bytes without gaps. This module doesn't know what the tensors are for.

Source: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qwen3_a8w8.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
"""Names of dtypes in a header."""

_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The header entry of one tensor.

    Attributes:
        name: its full name.
        dtype: its dtype by the header's name, such as "BF16" or "I8".
        shape: its shape.
        path: the file it is in.
        num_bytes: size of its values.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    num_bytes: int


def read_header(path: Path) -> tuple[bytes, int, dict[str, TensorInfo]]:
    """Reads and checks only the header of one file.

    Returns:
        The header's bytes, the size of the file in bytes, and the tensors by name.

    Raises:
        CheckpointError: the file is truncated, too long, or isn't a safetensors file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if (prefix + file.read(32)).startswith(_LFS_POINTER):
                raise CheckpointError(
                    f"{path}: found a git-lfs pointer instead of the file; run 'git lfs pull' "
                    "in the checkpoint's directory"
                )
            if len(prefix) < 8 or length > size - 8 or length > MAX_HEADER_BYTES:
                raise CheckpointError(
                    f"{path}: expected a safetensors header of at most "
                    f"{min(max(size - 8, 0), MAX_HEADER_BYTES)} bytes, found a length of {length} "
                    f"in a file of {size} bytes; the file is truncated or isn't a safetensors file"
                )
            file.seek(8)
            header = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path}: can't be read: {error.strerror}") from error

    try:
        entries = json.loads(header, object_pairs_hook=_refuse_duplicates)
        if not isinstance(entries, dict):
            raise ValueError(f"it is a JSON {type(entries).__name__}, expected an object")
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the safetensors header is damaged: {error}") from error
    entries.pop("__metadata__", None)

    infos: dict[str, TensorInfo] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in entries.items():
        info, start, end = _parse_entry(path, name, entry)
        infos[name] = info
        spans.append((start, end, name))
    position = 0
    for start, end, name in sorted(spans):
        if start != position:
            raise CheckpointError(
                f"{path}: tensor {name} starts at byte {start} of the data, expected {position}; "
                "the header is damaged"
            )
        position = end
    expected_size = 8 + length + position
    if size != expected_size:
        state = "truncated" if size < expected_size else "longer than its header says"
        last = f" (the last tensor is {max(spans)[2]})" if spans else ""
        raise CheckpointError(
            f"{path}: expected {expected_size} bytes, found {size}: the file is {state}{last}; "
            "download it again"
        )
    return header, size, infos


def encode_header(spans: dict[str, tuple[str, tuple[int, ...], int, int]]) -> bytes:
    """Encodes the start of a file: the length and the JSON, padded to 8 bytes.

    Args:
        spans: per tensor its dtype by the header's name, shape, first and end byte in the data.
    """
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, (dtype, shape, start, end) in spans.items():
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{doubled!r} appears twice")
    return result


def _is_extent(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _parse_entry(path: Path, name: str, entry: object) -> tuple[TensorInfo, int, int]:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape = fields.get("dtype"), fields.get("shape")
    offsets = fields.get("data_offsets")
    if (
        not isinstance(dtype, str)
        or not isinstance(shape, list)
        or not all(_is_extent(extent) for extent in shape)
        or not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(_is_extent(offset) for offset in offsets)
    ):
        raise CheckpointError(
            f"{path}: tensor {name}: expected dtype, shape and data_offsets in the header, "
            f"found {entry!r}"
        )
    start, end = offsets
    # The reader rejects unknown dtypes and names those that it accepts.
    if dtype in DTYPES:
        num_bytes = math.prod(shape) * DTYPES[dtype].itemsize
        if end - start != num_bytes:
            raise CheckpointError(
                f"{path}: tensor {name}: expected {num_bytes} bytes for {dtype} {shape}, "
                f"found {end - start}; the header is damaged"
            )
    return TensorInfo(name, dtype, tuple(shape), path, end - start), start, end
