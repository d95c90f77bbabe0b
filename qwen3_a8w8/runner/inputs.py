"""Input memory that is kept from one dispatch to the next, so that only what changes is written.

Written on the host as numpy arrays. On a CPU they are the device memory itself; elsewhere all
of a block goes over in one copy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen3_a8w8.kernels.signature import UINT8, DType
from qwen3_a8w8.runner.worker import NUMPY_DTYPES, Worker
from qwen3_a8w8.runner.worker_tensor import WorkerTensor

_ALIGNMENT = 64
_FIRST_CAPACITY = 64


class InputBlock:
    """Inputs of fixed shapes, side by side in one allocation.

    Attributes:
        arrays: what the host writes, by name; zeros at first.
        tensors: the same as arguments of a callable.
    """

    def __init__(self, worker: Worker, layout: Mapping[str, tuple[DType, tuple[int, ...]]]) -> None:
        """Takes memory.

        Args:
            worker: whose memory it is.
            layout: dtype and shape by name.
        """
        begins: dict[str, int] = {}
        num_bytes = 0
        for name, (dtype, shape) in layout.items():
            begins[name] = num_bytes
            num_bytes += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        self._worker = worker
        self._memory = worker.alloc((num_bytes,), UINT8)
        host = worker.host_array(self._memory)
        self._staging: NDArray[Any] | None = None
        if host is None:
            host = self._staging = np.zeros(num_bytes, np.uint8)
        self.arrays: dict[str, NDArray[Any]] = {}
        self.tensors: dict[str, WorkerTensor] = {}
        for name, (dtype, shape) in layout.items():
            begin = begins[name]
            end = begin + math.prod(shape) * dtype.itemsize
            self.arrays[name] = host[begin:end].view(NUMPY_DTYPES[dtype]).reshape(shape)
            offset = begin // dtype.itemsize
            self.tensors[name] = WorkerTensor(self._memory.allocation, dtype, shape, offset)

    def upload(self) -> None:
        """Makes the device see what was written."""
        if self._staging is not None:
            self._worker.upload(self._memory, self._staging)

    def free(self) -> None:
        """Gives the memory back; idempotent."""
        self._worker.free(self._memory)


class GrowingInput:
    """A list of numbers of any length, in memory that doubles when it is too small.

    Attributes:
        tensor: [capacity]; what lies beyond the list means nothing.
    """

    def __init__(self, worker: Worker, dtype: DType) -> None:
        """Takes memory for a few."""
        self._worker = worker
        self._dtype = dtype
        self.tensor = worker.alloc((_FIRST_CAPACITY,), dtype)

    def write(self, values: Sequence[int] | Sequence[float] | NDArray[Any]) -> bool:
        """Uploads the list.

        Returns:
            Whether `tensor` is another one now.
        """
        array = np.asarray(values, NUMPY_DTYPES[self._dtype])
        capacity = self.tensor.num_elements
        has_grown = array.size > capacity
        if has_grown:
            self.free()
            while capacity < array.size:
                capacity *= 2
            self.tensor = self._worker.alloc((capacity,), self._dtype)
        self._worker.upload(self.tensor, array)
        return has_grown

    def free(self) -> None:
        """Gives the memory back; idempotent."""
        self._worker.free(self.tensor)
