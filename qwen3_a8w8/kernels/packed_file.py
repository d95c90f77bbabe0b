"""The file format of packed constants: written once, then mapped or read at every start.

    [preamble 4 KiB] [constants, each page-aligned] [table, JSON]

The preamble holds the file's size, the table's place and SHA-256, and a SHA-256 of
itself. The table holds an identity (strings that say what the constants were made from)
and offset, size and checksum of each constant. The preamble is written last, so that a
truncated file is recognised.

This module knows neither which constants a model has nor where files are kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import mmap
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qwen3_a8w8.closing import SelfClosing
from qwen3_a8w8.errors import CheckpointError
from qwen3_a8w8.kernels.backend import Packed
from qwen3_a8w8.kernels.host_memory import HUGE_PAGE_BYTES, advise, for_pieces, zeroed

FORMAT_VERSION = 1

_MAGIC = b"QW3PACK\0"
_PREAMBLE_BYTES = 4096
_PREAMBLE = struct.Struct("<8sQQQQ32s")  # magic, version, file size, table's offset, bytes, SHA-256
_DIGEST_BYTES = 32
_PAGE_BYTES = 4096
_WRITE_BYTES = 64 << 20
_MAPPINGS = Path("/proc/self/smaps")


class PackedFileError(CheckpointError):
    """A packed file is damaged, truncated or of another kind; it must be made again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Place of one constant in the file.

    Attributes:
        offset: of its first byte.
        nbytes: its size.
        checksum: of its bytes, by the backend that packed it.
    """

    offset: int
    nbytes: int
    checksum: int


class PackedFileWriter(SelfClosing):
    """Writes constants one after the other; holds none of them.

    Args:
        path: a new file.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._entries: dict[str, Entry] = {}
        self._num_written = 0
        self._tail = bytearray(_PREAMBLE_BYTES)  # overwritten at the end

    def add(self, name: str, packed: Packed, checksum: int) -> None:
        """Appends a constant.

        Raises:
            OSError: it can't be written.
        """
        offset = self._start_page()
        self._append(memory_at(packed.data_ptr(), packed.nbytes))
        self._entries[name] = Entry(offset, packed.nbytes, checksum)

    def add_alias(self, name: str, other: str) -> None:
        """Adds a second name for a constant."""
        self._entries[name] = self._entries[other]

    def finish(self, identity: Mapping[str, str]) -> None:
        """Writes table and preamble, and waits until everything is on disk.

        Raises:
            OSError: it can't be written.
        """
        table = {
            "identity": dict(identity),
            "constants": {
                name: [entry.offset, entry.nbytes, entry.checksum]
                for name, entry in self._entries.items()
            },
        }
        data = json.dumps(table).encode()
        offset = self._start_page()
        self._append(memoryview(data))
        self._write(memoryview(self._tail))
        fields = (_MAGIC, FORMAT_VERSION, offset + len(data), offset, len(data))
        head = _PREAMBLE.pack(*fields, hashlib.sha256(data).digest())
        head = head.ljust(_PREAMBLE_BYTES - _DIGEST_BYTES, b"\0")
        # The constants must be on disk before the preamble that declares them complete.
        os.fsync(self._fd)
        os.pwrite(self._fd, head + hashlib.sha256(head).digest(), 0)
        os.fsync(self._fd)

    def _start_page(self) -> int:
        self._append(memoryview(bytes(-len(self._tail) % _PAGE_BYTES)))
        return self._num_written + len(self._tail)

    def _append(self, data: memoryview) -> None:
        """Writes whole huge pages only, so that the page cache keeps the file in huge pages."""
        while data:
            if self._tail or len(data) < HUGE_PAGE_BYTES:
                room = HUGE_PAGE_BYTES - len(self._tail)
                self._tail += data[:room]
                data = data[room:]
                if len(self._tail) == HUGE_PAGE_BYTES:
                    self._write(memoryview(self._tail))
                    self._tail = bytearray()
            else:
                num_whole = len(data) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
                self._write(data[:num_whole])
                data = data[num_whole:]

    def _write(self, data: memoryview) -> None:
        while data:
            num_bytes = os.pwrite(self._fd, data[:_WRITE_BYTES], self._num_written)
            self._num_written += num_bytes
            data = data[num_bytes:]

    def close(self) -> None:
        """Closes the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class PackedFile:
    """A complete file: mapped read-only, with pages shared by all processes, or a copy of it.

    Attributes:
        identity: what the constants were made from.
        entries: the constants by name.
        nbytes: size of the file.
        memory: the mapping or the copy, [nbytes] uint8, read-only; lives while it is referred to.
    """

    def __init__(self, path: Path, *, use_mmap: bool = True) -> None:
        """Maps or reads a file and checks preamble and table, not the constants.

        Args:
            path: of the file.
            use_mmap: map it; otherwise read it into memory of this process, in huge pages where
                the kernel has them.

        Raises:
            PackedFileError: it isn't a complete packed file; the message says what is wrong.
            OSError: it can't be read.
            MemoryError: a copy of it doesn't fit.
        """
        with path.open("rb") as file:
            self.nbytes = os.fstat(file.fileno()).st_size
            offset, length, digest = _read_preamble(file.read(_PREAMBLE_BYTES), self.nbytes)
            table = os.pread(file.fileno(), length, offset)
            if hashlib.sha256(table).digest() != digest:
                raise PackedFileError("its table is damaged")
            self.memory = (_map if use_mmap else _read)(file.fileno(), self.nbytes)
        parsed = json.loads(table)
        self.identity: dict[str, str] = parsed["identity"]
        self.entries = {name: Entry(*entry) for name, entry in parsed["constants"].items()}

    def address(self, name: str) -> int:
        """Where a constant lies in memory while `memory` is held."""
        return int(self.memory.ctypes.data) + self.entries[name].offset

    def huge_page_bytes(self) -> int:
        """Bytes of the mapping that are in huge pages; 0 where the system doesn't report it.

        This depends on kernel and file system (Linux: XFS, or ext4 since 6.16), and on whether
        huge pages were free when the file was read.
        """
        entry = rf"^{self.memory.ctypes.data:x}-.*?^FilePmdMapped: +(\d+) kB"
        with contextlib.suppress(OSError):
            found = re.search(entry, _MAPPINGS.read_text(), re.DOTALL | re.MULTILINE)
            return int(found[1]) << 10 if found else 0
        return 0


def _map(fd: int, nbytes: int) -> NDArray[np.uint8]:
    mapping = mmap.mmap(fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ)
    advise(mapping, "MADV_HUGEPAGE")
    advise(mapping, "MADV_WILLNEED")
    return np.frombuffer(mapping, np.uint8)


def _read(fd: int, nbytes: int) -> NDArray[np.uint8]:
    memory = zeroed(nbytes)

    def read_piece(begin: int, end: int) -> None:
        while begin < end:
            count = os.preadv(fd, [memory[begin:end].data], begin)
            if count == 0:
                raise PackedFileError(f"it ends at byte {begin} of {nbytes}; it was cut meanwhile")
            begin += count

    for_pieces(nbytes, read_piece)
    memory.flags.writeable = False
    return memory


def memory_at(address: int, nbytes: int) -> memoryview:
    """The bytes at an address, which the caller keeps valid."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


def _read_preamble(head: bytes, file_size: int) -> tuple[int, int, bytes]:
    if len(head) < _PREAMBLE_BYTES or not head.startswith(_MAGIC):
        raise PackedFileError("it isn't a packed file, or was cut short")
    if hashlib.sha256(head[:-_DIGEST_BYTES]).digest() != head[-_DIGEST_BYTES:]:
        raise PackedFileError("its preamble is damaged")
    _, version, size, offset, length, digest = _PREAMBLE.unpack_from(head)
    if version != FORMAT_VERSION:
        raise PackedFileError(f"its format version is {version}, expected {FORMAT_VERSION}")
    if size != file_size:
        raise PackedFileError(f"it has {file_size} bytes, expected {size}")
    return offset, length, digest
