"""Limits of the machine: bytes read and int8 products per second.

Both are measured in the run whose figures are compared with them, since clock rates
and other load change between runs.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from qwen3_a8w8.errors import KernelUnavailableError
from qwen3_a8w8.kernels.backend import Backend, MappableBackend
from qwen3_a8w8.kernels.select import select_backend

MIN_BUFFER_BYTES = 1 << 30
"""A shared cache may have hundreds of MiB; the buffer must be larger."""

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_PREFETCH_BYTES = (0, 2048, 4096)  # the best one depends on the machine and is the limit
_PASSES = 5
_FOOTPRINT_PASSES = 3
_MULTIPLY_ROUNDS = 500_000  # some 10 to 40 ms per pass on any instruction path
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@runtime_checkable
class MeasurableBackend(Backend, Protocol):
    """A backend that can measure its own limits."""

    def read_bytes_per_s(self, num_bytes: int, prefetch_bytes: int, passes: int) -> list[float]:
        """How fast it reads memory, once per pass.

        Args:
            num_bytes: size of the buffer, which is allocated for it; larger than any cache.
            prefetch_bytes: how far ahead software prefetches, where there is such a thing.
            passes: most measurements.
        """
        ...

    def int8_products_per_s(self, rounds: int, passes: int) -> list[float]:
        """int8 multiply-adds per second, once per pass.

        Args:
            rounds: length of a pass, in a unit of the backend's own.
            passes: most measurements.
        """
        ...


def measurable_backend(device: str, num_threads: int | None, isa: str | None) -> MeasurableBackend:
    """`select_backend`, for a benchmark.

    Raises:
        KernelUnavailableError: the device can't run here, or its limits can't be measured.
    """
    backend = select_backend(device, num_threads, isa)
    if not isinstance(backend, MeasurableBackend):
        backend.close()
        raise KernelUnavailableError(
            f"the limits of {backend.name} can't be measured; use --device cpu"
        )
    return backend


class Machine:
    """The limits: the machine's best and median rates.

    Attributes:
        read_gbps: 1e9 bytes per second that all threads together read from memory; best seen.
        int8_tmacs: 1e12 int8 multiply-adds per second on registers; best seen.
    """

    def __init__(self, backend: MeasurableBackend, free_bytes: int) -> None:
        """Measures for the first time.

        Args:
            backend: is measured: its threads and instruction path, or its device.
            free_bytes: free memory, of which at most half is used temporarily.
        """
        self._backend = backend
        wanted = max(MIN_BUFFER_BYTES, 2 * last_level_cache_bytes())
        self._buffer_bytes = min(wanted, free_bytes // 2)
        self.read_gbps = 0.0
        self.int8_tmacs = 0.0
        self._typical: list[tuple[float, float]] = []
        self.measure()

    def measure(self) -> None:
        """Measures again; several measurements in a run give its best and its median."""
        reads = [
            [
                rate / 1e9
                for rate in self._backend.read_bytes_per_s(self._buffer_bytes, ahead, _PASSES)
            ]
            for ahead in _PREFETCH_BYTES
        ]
        products = [
            rate / 1e12 for rate in self._backend.int8_products_per_s(_MULTIPLY_ROUNDS, _PASSES)
        ]
        self.read_gbps = max(self.read_gbps, *map(max, reads))
        self.int8_tmacs = max(self.int8_tmacs, *products)
        self._typical.append((max(map(median, reads)), median(products)))

    @property
    def median_read_gbps(self) -> float:
        """Like `read_gbps`, the median over the run."""
        return median(read for read, _ in self._typical)

    @property
    def median_int8_tmacs(self) -> float:
        """Like `int8_tmacs`, the median over the run."""
        return median(products for _, products in self._typical)

    def read_gbps_of(self, memory: NDArray[np.uint8]) -> float:
        """1e9 bytes per second at which all threads read this memory in a plain loop; best seen.

        Memory of many GiB may be slower than the buffer of `read_gbps`: it has other pages
        and a smaller share of it is in a shared cache.

        Args:
            memory: [bytes] uint8.
        """
        assert isinstance(self._backend, MappableBackend)  # only these have packed memory
        seconds = []
        for _ in range(_FOOTPRINT_PASSES):
            start = time.perf_counter()
            self._backend.checksum(memory.ctypes.data, memory.nbytes)
            seconds.append(time.perf_counter() - start)
        return memory.nbytes / min(seconds) / 1e9

    def floor_s(self, num_bytes: float, num_macs: float, read_gbps: float | None = None) -> float:
        """Least seconds for reading or multiplying, whichever takes longer.

        Args:
            num_bytes: bytes read from memory.
            num_macs: int8 multiply-adds.
            read_gbps: 1e9 bytes per second; None: `read_gbps` of the machine.
        """
        rate = self.read_gbps if read_gbps is None else read_gbps
        return max(num_bytes / (rate * 1e9), num_macs / (self.int8_tmacs * 1e12))

    def median_floor_s(self, num_bytes: float, num_macs: float) -> float:
        """Like `floor_s`, at the median rates of the run."""
        return max(
            num_bytes / (self.median_read_gbps * 1e9), num_macs / (self.median_int8_tmacs * 1e12)
        )

    def as_dict(self) -> dict[str, float]:
        """JSON-ready fields."""
        return {
            "read_gbps": self.read_gbps,
            "int8_tmacs": self.int8_tmacs,
            "median_read_gbps": self.median_read_gbps,
            "median_int8_tmacs": self.median_int8_tmacs,
        }


def last_level_cache_bytes() -> int:
    """Size of the largest cache; 64 MiB if the kernel doesn't report it."""
    sizes = []
    for path in _CACHES.glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdigit() and text[-1] in _UNITS:
            sizes.append(int(text[:-1]) * _UNITS[text[-1]])
    return max(sizes, default=64 << 20)
