"""The device's memory in use: what this process has grown by since it opened the device."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from torch_npu._emulation.options import options

_GIB = 1 << 30
_STATUS = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_resident_at_start: int | None = None


def _resident_bytes() -> int:
    return int(_STATUS.read_text(encoding="ascii").split()[1]) * _PAGE_BYTES


def open_account() -> None:
    """What the process has by now isn't the device's."""
    global _resident_at_start
    _resident_at_start = _resident_bytes()


def total_bytes() -> int:
    """Memory of the device."""
    return int(options.memory_gib * _GIB)


def used_bytes() -> int:
    """Memory in use; 0 before the device is opened."""
    return 0 if _resident_at_start is None else max(0, _resident_bytes() - _resident_at_start)


def check_room(where: str) -> None:
    """Refuses work once the memory is exceeded.

    Raises:
        torch.OutOfMemoryError: as torch_npu words it.
    """
    used, total = used_bytes(), total_bytes()
    if used > total:
        raise torch.OutOfMemoryError(
            f"{where}: NPU out of memory. Tried to allocate {(used - total) / _GIB:.2f} GiB "
            f"(NPU 0; {total / _GIB:.2f} GiB total capacity; {used / _GIB:.2f} GiB in use)"
        )
