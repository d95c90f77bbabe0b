"""The device's functions, which torch knows as `torch.npu`."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO, Any

import torch

from torch_npu._emulation import memory
from torch_npu._emulation.definitions import is_lost, lost_device
from torch_npu._emulation.options import options
from torch_npu.npu.graphs import (
    NPUGraph,
    graph,
    graph_pool_handle,
    graph_task_group_begin,
    graph_task_group_end,
    graph_task_update_begin,
    graph_task_update_end,
    is_current_stream_capturing,
)
from torch_npu.npu.streams import (
    Event,
    ExternalEvent,
    Stream,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from torch_npu.npu.utils import get_cann_version, get_soc_version

__all__ = [
    "Event",
    "ExternalEvent",
    "NPUGraph",
    "Stream",
    "current_device",
    "current_stream",
    "default_stream",
    "device_count",
    "empty_cache",
    "get_cann_version",
    "get_device_name",
    "get_device_properties",
    "get_soc_version",
    "graph",
    "graph_pool_handle",
    "graph_task_group_begin",
    "graph_task_group_end",
    "graph_task_update_begin",
    "graph_task_update_end",
    "init",
    "is_available",
    "is_current_stream_capturing",
    "is_initialized",
    "manual_seed",
    "max_memory_allocated",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "reset_peak_memory_stats",
    "set_device",
    "set_stream",
    "stream",
    "synchronize",
]

_holder: IO[str] | None = None
_device = 0
_is_initialized = False


def device_count() -> int:
    """Number of devices this process may see."""
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if visible is None:
        return options.devices
    return len([index for index in visible.split(",") if index.strip()][: options.devices])


def is_available() -> bool:
    """Whether there is a device."""
    return device_count() > 0


def init() -> None:
    """Opens the device.

    Raises:
        RuntimeError: there is none, or another process holds it.
    """
    global _is_initialized, _holder
    if _is_initialized:
        return
    if not is_available():
        raise RuntimeError(
            "Initialize:NPU function error: aclrtGetDeviceCount, error code is 107001\n"
            "[Error]: Invalid device ID. There is no device in this machine."
        )
    if options.exclusive:
        holder = (Path(options.exclusive) / f"npu{_device}").open("w")
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder.close()
            raise RuntimeError(
                f"Initialize:NPU function error: aclrtSetDevice({_device}), error code is 507033\n"
                "[Error]: The device is occupied by another process."
            ) from None
        _holder = holder
    memory.open_account()
    _is_initialized = True


def is_initialized() -> bool:
    """Whether this process has opened its device."""
    return _is_initialized


def set_device(device: Any) -> None:
    """Chooses and opens a device.

    Raises:
        RuntimeError: there is no such device, or another process holds it.
    """
    global _device
    index = _index(device)
    if not 0 <= index < device_count():
        raise RuntimeError(
            f"set_device:NPU function error: aclrtSetDevice({index}), error code is 107001\n"
            f"[Error]: Invalid device ID. There are {device_count()} devices."
        )
    _device = index
    init()


def current_device() -> int:
    """Index of the chosen device."""
    init()
    return _device


def _index(device: Any) -> int:
    if isinstance(device, int):
        return device
    text = str(device)
    return int(text.rpartition(":")[2]) if ":" in text else 0


def get_device_name(device: Any = None) -> str:
    """The chip's name."""
    return "Ascend910B3" if 220 <= options.soc <= 225 else f"Ascend-soc{options.soc}"


class _Properties:
    def __init__(self) -> None:
        self.name = get_device_name()
        self.total_memory = memory.total_bytes()
        self.cube_core_num, self.vector_core_num = 20, 40


def get_device_properties(device: Any = None) -> _Properties:
    """Name and memory of a device."""
    return _Properties()


def synchronize(device: Any = None) -> None:
    """Waits for all work.

    Raises:
        RuntimeError: the device is lost, or a graph waits for an event that nobody records.
    """
    from torch_npu.npu import graphs

    if is_lost():
        raise lost_device("npuSynchronizeDevice")
    graphs.check_nothing_waits()


def memory_allocated(device: Any = None) -> int:
    """Bytes in use."""
    return memory.used_bytes()


memory_reserved = max_memory_allocated = memory_allocated


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the device."""
    init()
    total = memory.total_bytes()
    return max(0, total - memory.used_bytes()), total


def empty_cache() -> None:
    """Returns unused memory to the device."""


def reset_peak_memory_stats(device: Any = None) -> None:
    """Forgets the largest use of memory."""


def manual_seed(seed: int) -> None:
    """Seeds the device's generator."""
    torch.manual_seed(seed)
