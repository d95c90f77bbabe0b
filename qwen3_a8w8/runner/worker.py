"""Owner of one device's memory and compiled callables.

Callers get tensors as `WorkerTensor` handles (dtype, shape, and offset into an allocation),
so that planning and packing need no device pointers. Doesn't know about models or sequences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qwen3_a8w8.errors import SignatureError
from qwen3_a8w8.kernels.backend import CheckedCall, CompiledCallable, HostArrays
from qwen3_a8w8.kernels.host_memory import HUGE_PAGE_BYTES, zeroed
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
"""Most cached views of one allocation."""


class Allocation:
    """A block of device memory of one element type; the worker frees it.

    Attributes:
        memory: the bytes, or None once freed.
        views: tensors that alias it, by offset and shape: steps use the same few repeatedly, and
            creating one costs more than a lookup.
        handles: cached views, by their source and arguments.
        host_views: flat numpy arrays that alias it, by offset and size, if the host can write it.
    """

    __slots__ = ("handles", "host_views", "memory", "views")

    def __init__(self, memory: Tensor) -> None:
        self.memory: Tensor | None = memory
        self.views: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        self.handles: dict[tuple[int, tuple[int, ...], int, tuple[int, ...]], WorkerTensor] = {}
        self.host_views: dict[tuple[int, int], NDArray[Any]] = {}

    def free(self) -> None:
        """Drops the references to the memory."""
        self.memory = None
        self.views.clear()
        self.handles.clear()
        self.host_views.clear()


@dataclass(frozen=True, slots=True)
class WorkerTensor:
    """A view of worker-owned memory.

    Attributes:
        allocation: the memory that contains it.
        dtype: element type, which determines the element size.
        shape: extents, row-major and contiguous.
        offset: first element, in elements from the start of the allocation.
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
            SignatureError: the view isn't inside this tensor.
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
        """The memory as a contiguous torch tensor that aliases it, for callables.

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
        start = self.offset * self.dtype.itemsize
        raw = memory[start : start + self.num_bytes]
        view = raw.view(TORCH_DTYPES[self.dtype]).view(self.shape)
        if len(self.allocation.views) >= MAX_VIEWS:
            self.allocation.views.clear()
        self.allocation.views[key] = view
        return view


NUMPY_DTYPES: dict[DType, np.dtype[Any]] = {
    dtype: np.dtype(dtype.label) for dtype in DType if dtype is not DType.BFLOAT16
}


class PreparedCall:
    """A registered callable with its arguments, checked once for any number of runs.

    Looking up and checking two dozen arguments takes longer than a step of a small model.
    It keeps no reference to memory that the worker has freed.
    """

    def __init__(
        self,
        worker: Worker,
        callable_id: int,
        args: Mapping[str, WorkerTensor],
        host: HostArrays | None = None,
    ) -> None:
        self._worker = worker
        self._callable_id = callable_id
        self._args = dict(args)
        self._host = host
        self._checked: CheckedCall | None = None

    def __call__(self) -> None:
        """Runs the callable; outputs are written in place.

        Raises:
            SignatureError: an argument doesn't fit or was freed, or the worker is closed.
            UnsupportedBatchSizeError: a batch size that isn't compiled.
        """
        if self._checked is None:
            self._checked = self._worker.check(self._callable_id, self._args, self._host)
        self._checked()

    def release(self) -> None:
        """Drops the references to memory; the next call checks its arguments again."""
        self._checked = None


class Worker:
    """Allocates, uploads, registers and runs on one device.

    Args:
        device: torch device type, e.g. "cpu".
        is_host_memory: callables read what the host writes. Not so on a device with memory of its
            own, nor on one that is emulated in memory that happens to be the host's.
    """

    def __init__(self, device: str, *, is_host_memory: bool = True) -> None:
        self.device = device
        self.is_host_memory = is_host_memory and device == "cpu"
        self._allocations: dict[Allocation, int] = {}
        self._callables: list[CompiledCallable] = []
        self._ids: dict[CompiledCallable, int] = {}
        self._prepared: WeakSet[PreparedCall] = WeakSet()
        self._is_closed = False

    @property
    def num_bytes(self) -> int:
        """Bytes of allocated device memory."""
        return sum(self._allocations.values())

    @property
    def arena_bytes(self) -> int:
        """Bytes of scratch memory that the registered callables hold in addition."""
        return sum(compiled.arena_bytes for compiled in self._callables)

    def alloc(
        self, shape: tuple[int, ...], dtype: DType, *, is_taken: bool = False
    ) -> WorkerTensor:
        """Allocates zeroed device memory.

        Args:
            shape: extents, each at least 0.
            dtype: element type.
            is_taken: host memory is committed now, not page by page when it is used.

        Raises:
            SignatureError: the worker is closed.
        """
        self._check_open()
        num_bytes = math.prod(shape) * dtype.itemsize
        allocation = Allocation(_zeros(num_bytes, self.device, is_taken))
        self._allocations[allocation] = num_bytes
        return WorkerTensor(allocation, dtype, tuple(shape))

    def upload(self, target: WorkerTensor, values: NDArray[np.generic]) -> None:
        """Copies host values to the start of a tensor.

        Args:
            target: device memory.
            values: contiguous array of the same dtype with at most as many elements.

        Raises:
            SignatureError: dtype or size don't fit.
        """
        expected = NUMPY_DTYPES.get(target.dtype)
        if expected is None or values.dtype != expected or values.size > target.num_elements:
            raise SignatureError(
                f"{values.size} elements of {values.dtype.name} don't fit a tensor of "
                f"{target.num_elements} elements of {target.dtype.label}"
            )
        host_views = target.allocation.host_views
        host = host_views.get((target.offset, values.size))
        if host is None:
            flat = target.view(values.size).to_continuous_tensor()
            if not self.is_host_memory:
                flat.copy_(torch.from_numpy(np.ascontiguousarray(values).reshape(-1)))
                return
            # A numpy copy costs a fraction of torch's, and a step uploads two dozen arrays.
            if len(host_views) >= MAX_VIEWS:
                host_views.clear()
            host = host_views[target.offset, values.size] = flat.numpy()
        host[:] = values.reshape(-1)

    def host_array(self, tensor: WorkerTensor) -> NDArray[Any] | None:
        """The memory itself as an array of the host, if it is the host's; else None."""
        return tensor.to_continuous_tensor().numpy() if self.is_host_memory else None

    def select_rows(self, target: WorkerTensor, source: WorkerTensor, rows: WorkerTensor) -> None:
        """Copies rows on the device: target[i] = source[rows[i]] where rows[i] isn't negative.

        Args:
            target: [N, width].
            source: [M, width] of the same dtype.
            rows: [N] int32, below M.
        """
        index = rows.to_continuous_tensor()
        into = target.to_continuous_tensor()
        found = source.to_continuous_tensor().index_select(0, index.clamp(min=0))
        into.copy_(torch.where((index >= 0).unsqueeze(1), found, into))

    def free(self, tensor: WorkerTensor) -> None:
        """Frees a tensor's whole allocation; its views become unusable. Idempotent."""
        if self._allocations.pop(tensor.allocation, None) is not None:
            tensor.allocation.free()
            self._release_prepared()

    def register(self, compiled: CompiledCallable) -> int:
        """Registers a callable; the same one always gets the same id."""
        self._check_open()
        callable_id = self._ids.get(compiled)
        if callable_id is None:
            callable_id = len(self._callables)
            self._callables.append(compiled)
            self._ids[compiled] = callable_id
        return callable_id

    def run(
        self,
        callable_id: int,
        args: Mapping[str, WorkerTensor],
        host: HostArrays | None = None,
    ) -> None:
        """Runs a registered callable; its outputs are written in place.

        Args:
            callable_id: from `register`.
            args: tensors by parameter name.
            host: what was uploaded to some of them.

        Raises:
            SignatureError: an argument doesn't fit, or the worker is closed.
            UnsupportedBatchSizeError: a batch size that isn't compiled.
        """
        self.check(callable_id, args, host)()

    def check(
        self,
        callable_id: int,
        args: Mapping[str, WorkerTensor],
        host: HostArrays | None = None,
    ) -> CheckedCall:
        """Checks the arguments of a registered callable; the result runs it.

        Raises:
            SignatureError: an argument doesn't fit, or the worker is closed.
            UnsupportedBatchSizeError: a batch size that isn't compiled.
        """
        self._check_open()
        tensors = {name: tensor.to_continuous_tensor() for name, tensor in args.items()}
        return self._callables[callable_id].check(host, **tensors)

    def prepare(
        self,
        callable_id: int,
        args: Mapping[str, WorkerTensor],
        host: HostArrays | None = None,
    ) -> PreparedCall:
        """Prepares repeated calls with the same tensors; checks nothing yet.

        Args:
            callable_id: from `register`.
            args: tensors by parameter name.
            host: arrays that some of them are uploaded from before each call.
        """
        call = PreparedCall(self, callable_id, args, host)
        self._prepared.add(call)
        return call

    def close(self) -> None:
        """Frees everything. Idempotent."""
        for allocation in self._allocations:
            allocation.free()
        self._allocations.clear()
        self._callables.clear()
        self._ids.clear()
        self._release_prepared()
        self._is_closed = True

    def _release_prepared(self) -> None:
        for call in self._prepared:
            call.release()

    def _check_open(self) -> None:
        if self._is_closed:
            raise SignatureError("the worker is closed; create a new one")


def _zeros(num_bytes: int, device: str, is_taken: bool) -> torch.Tensor:
    """Zeroed bytes; large allocations in host memory use huge pages if possible.

    A decode step reads the cache in scattered ranges of a few KiB: with small pages every range
    costs a page-table walk.
    """
    if device != "cpu" or num_bytes < HUGE_PAGE_BYTES:
        return torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    return torch.from_numpy(zeroed(num_bytes, is_taken=is_taken))
