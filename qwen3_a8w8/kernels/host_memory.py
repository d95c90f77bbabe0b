"""Zeroed memory of the host, in huge pages where the kernel has them.

The kernel provides memory at the first touch of each page. Memory that will certainly be needed
is touched here, by all threads, so that no request waits for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE_BYTES = 2 << 20

_MADV_POPULATE_WRITE = 23  # Linux 5.14; not named by Python
_PIECE_BYTES = 64 << 20


def zeroed(num_bytes: int, *, is_taken: bool = False) -> NDArray[np.uint8]:
    """[num_bytes] uint8 of zeros.

    Args:
        num_bytes: at least 1.
        is_taken: touch all pages now instead of at their first use.

    Raises:
        MemoryError: there isn't enough memory.
    """
    try:
        mapping = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{num_bytes} bytes can't be had: {error.strerror}") from error
    advise(mapping, "MADV_HUGEPAGE")
    memory = np.frombuffer(mapping, np.uint8)
    if not is_taken:
        return memory
    libc = ctypes.CDLL(None, use_errno=True)
    for_pieces(num_bytes, lambda begin, end: _touch(libc, memory[begin:end]))
    return memory


def for_pieces(num_bytes: int, work: Callable[[int, int], None]) -> None:
    """Calls work(begin, end) for pieces of [0, num_bytes), on as many threads as there are cores.

    Memory that is touched for the first time costs more than what is written to it, so threads
    pay off. An exception of `work` is raised.
    """
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        begins = range(0, num_bytes, _PIECE_BYTES)
        for _ in threads.map(lambda at: work(at, min(at + _PIECE_BYTES, num_bytes)), begins):
            pass


def advise(mapping: mmap.mmap, advice: str) -> None:
    """Gives the kernel advice by its name in `mmap`; without effect where that isn't supported."""
    with contextlib.suppress(AttributeError, OSError):
        mapping.madvise(getattr(mmap, advice))


def _touch(libc: ctypes.CDLL, piece: NDArray[np.uint8]) -> None:
    address, length = ctypes.c_void_p(piece.ctypes.data), ctypes.c_size_t(piece.nbytes)
    if libc.madvise(address, length, _MADV_POPULATE_WRITE) == 0:
        return
    if (code := ctypes.get_errno()) in (errno.ENOMEM, errno.EFAULT):
        raise MemoryError(f"{piece.nbytes} bytes can't be had: {os.strerror(code)}")
    piece[:] = 0  # a kernel that doesn't know the advice
