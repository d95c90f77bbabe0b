"""Handles of device memory that a worker owns: dtype, shape, and offset into an allocation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from qwen3_a8w8.errors import SignatureError
from qwen3_a8w8.kernels.signature import DType

TORCH_DTYPES: dict[DType, torch.dtype] = {
    DType.INT8: torch.int8,
    DType.UINT8: torch.uint8,
    DType.BFLOAT16: torch.bfloat16,
    DType.INT32: torch.int32,
    DType.FLOAT32: torch.float32,
    DType.INT64: torch.int64,
}

MAX_VIEWS = 64
"""Most views of one allocation that are kept to be found again."""


class Allocation:
    """A piece of device memory of one element type; freed when the worker lets go of it.

    Attributes:
        memory: the bytes, or None once freed.
        views: tensors that alias it, by offset and shape: a step uses the same few again and
            again, and making one costs more than finding it.
        handles: views that were made of it, by what they were made from and how.
        host_views: flat numpy arrays that alias it, by offset and size, if the host can write it.
    """

    __slots__ = ("handles", "host_views", "memory", "views")

    def __init__(self, memory: Tensor) -> None:
        self.memory: Tensor | None = memory
        self.views: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        self.handles: dict[tuple[int, tuple[int, ...], int, tuple[int, ...]], WorkerTensor] = {}
        self.host_views: dict[tuple[int, int], NDArray[Any]] = {}

    def free(self) -> None:
        """Lets go of the memory."""
        self.memory = None
        self.views.clear()
        self.handles.clear()
        self.host_views.clear()


@dataclass(frozen=True, slots=True)
class WorkerTensor:
    """A view of worker-owned memory.

    Attributes:
        allocation: the memory it lies in.
        dtype: element type; the element size follows from it.
        shape: extents, row-major and contiguous.
        offset: first element, counted in elements from the allocation's begin.
    """

    allocation: Allocation
    dtype: DType
    shape: tuple[int, ...]
    offset: int = 0

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Size in bytes."""
        return self.num_elements * self.dtype.itemsize

    def view(self, *shape: int, offset: int = 0) -> WorkerTensor:
        """A contiguous part of this tensor under another shape; nothing is copied.

        Args:
            shape: extents of the view.
            offset: its first element, counted from this tensor's first.

        Raises:
            SignatureError: the view doesn't lie inside this tensor.
        """
        key = (self.offset, self.shape, offset, shape)
        known = self.allocation.handles.get(key)
        if known is not None:
            return known
        count = math.prod(shape)
        if offset < 0 or min(shape, default=0) < 0 or offset + count > self.num_elements:
            raise SignatureError(
                f"a view of shape {shape} at element {offset} needs {offset + count} elements, "
                f"but the tensor of shape {self.shape} has {self.num_elements}"
            )
        view = WorkerTensor(self.allocation, self.dtype, shape, self.offset + offset)
        if len(self.allocation.handles) >= MAX_VIEWS:
            self.allocation.handles.clear()
        self.allocation.handles[key] = view
        return view

    def to_continuous_tensor(self) -> Tensor:
        """The memory as a contiguous torch tensor that aliases it, as callables take it.

        Raises:
            SignatureError: the memory was freed.
        """
        key = (self.offset, self.shape)
        view = self.allocation.views.get(key)
        if view is not None:
            return view
        memory = self.allocation.memory
        if memory is None:
            raise SignatureError(
                f"the tensor of shape {self.shape} was freed; allocate it again before use"
            )
        begin = self.offset * self.dtype.itemsize
        raw = memory[begin : begin + self.num_bytes]
        view = raw.view(TORCH_DTYPES[self.dtype]).view(self.shape)
        if len(self.allocation.views) >= MAX_VIEWS:
            self.allocation.views.clear()
        self.allocation.views[key] = view
        return view
