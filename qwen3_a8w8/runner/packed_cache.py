"""Packs a checkpoint once and maps or reads the packed file at later starts.

With it a large model loads in seconds instead of minutes, and the replicas of one
host share the memory of its weights. Owns the location of packed files and when one
may be used; `kernels/packed_file.py` owns their format, `model/weights.py` the
constants. A stale or damaged file is never used: the reason is logged and the file is
rewritten.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen3_a8w8.checkpoint.checkpoint import Checkpoint
from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.kernels.backend import Backend, MappableBackend
from qwen3_a8w8.kernels.packed_file import PackedFile, PackedFileError, PackedFileWriter
from qwen3_a8w8.kernels.program import Ref
from qwen3_a8w8.model.weights import load_weights
from qwen3_a8w8.version import __version__

CACHE_VARIABLE = "QWEN3_A8W8_CACHE"
"""Environment variable with the default directory."""

MIN_BYTES = 256 << 20
"""Smallest weights that are stored in a file; smaller ones pack in a second."""

MIN_HUGE_SHARE = 0.95
"""Share of a packed file in huge pages below which the log has a warning with a remedy."""

AUTO = "auto"
"""The default directory, if it is writable."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackedCache:
    """Where packed weights are stored.

    Attributes:
        directory: of the packed files; created when needed.
        is_required: whether a directory that isn't writable is an error, because it was
            configured, or only a warning.
        min_bytes: smaller weights are packed again at each start.
        use_mmap: packed files are mapped; otherwise every process reads its own copy.
    """

    directory: Path
    is_required: bool = False
    min_bytes: int = MIN_BYTES
    use_mmap: bool = True

    @classmethod
    def from_setting(
        cls, setting: str | Path | None, *, use_mmap: bool = True
    ) -> PackedCache | None:
        """Creates the cache for a setting.

        Args:
            setting: a directory; "auto" for `$QWEN3_A8W8_CACHE` or
                `~/.cache/qwen3-a8w8/packed`; None for no cache.
            use_mmap: whether packed files are mapped.
        """
        if setting is None:
            return None
        if setting != AUTO:
            return cls(Path(setting).expanduser(), is_required=True, use_mmap=use_mmap)
        configured = os.environ.get(CACHE_VARIABLE)
        return cls(Path(configured or "~/.cache/qwen3-a8w8/packed").expanduser(), use_mmap=use_mmap)


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """Packed constants, and the memory of their file.

    Attributes:
        constants: by name, as the backend's `bind` accepts them.
        memory: the packed file in memory, [bytes] uint8, if there is one.
        is_mapped: it is in the page cache, which the kernel counts as free memory, but it must
            stay there.
    """

    constants: dict[str, Any]
    memory: NDArray[np.uint8] | None = None
    is_mapped: bool = False

    @property
    def mapped_bytes(self) -> int:
        """Bytes in the page cache."""
        return self.memory.nbytes if self.is_mapped and self.memory is not None else 0


def load_packed(
    checkpoint: Checkpoint, refs: Mapping[str, Ref], backend: Backend, cache: PackedCache | None
) -> LoadedWeights:
    """Returns a model's packed weights, from the cache if there is one.

    Args:
        checkpoint: an open checkpoint.
        refs: the constants that the checkpoint provides, by name.
        backend: packs the constants.
        cache: where packed files are stored; None: nowhere.

    Returns:
        The weights; bit-identical with and without the cache.

    Raises:
        CheckpointError: a tensor can't be read or isn't finite.
        ConfigError: a configured directory can't be used, or a copy doesn't fit the memory.
    """
    num_bytes = sum(ref.num_elements({}) * ref.dtype.itemsize for ref in refs.values())
    if cache is None or num_bytes < cache.min_bytes or not isinstance(backend, MappableBackend):
        return LoadedWeights(load_weights(checkpoint, refs, backend.pack))
    try:
        return _load_through(cache, checkpoint, refs, backend, num_bytes)
    except MemoryError as error:
        raise ConfigError(
            f"packed weights: {error}; set use_mmap to true, which shares them"
        ) from error
    except OSError as error:
        message = f"packed weights can't be stored in {cache.directory}: {error}"
        if cache.is_required:
            raise ConfigError(
                f"{message}; set packed_cache_dir to a writable directory, or to none"
            ) from error
        logger.warning(
            "%s; loading without a packed file. Set %s to a writable directory",
            message,
            CACHE_VARIABLE,
        )
        return LoadedWeights(load_weights(checkpoint, refs, backend.pack))


def _load_through(
    cache: PackedCache,
    checkpoint: Checkpoint,
    refs: Mapping[str, Ref],
    backend: MappableBackend,
    num_bytes: int,
) -> LoadedWeights:
    identity = {
        "checkpoint": checkpoint.fingerprint,
        "layout": backend.packed_layout,
        "version": __version__,
        "constants": _digest(refs),
    }
    # One file per checkpoint, layout and set of constants (int8_lm_head has a different set than
    # the default): when a checkpoint changes, its file is replaced.
    place = hashlib.sha256(str(checkpoint.directory.resolve()).encode()).hexdigest()[:12]
    name = checkpoint.directory.resolve().name
    path = (
        cache.directory
        / f"{name}-{place}-{backend.packed_layout}-{identity['constants'][:6]}.packed"
    )
    weights = _open(path, identity, refs, backend, cache.use_mmap)
    if weights is not None:
        return weights
    cache.directory.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        # Another process may have written it while this one waited.
        weights = _open(path, identity, refs, backend, cache.use_mmap)
        if weights is None:
            _write(path, identity, checkpoint, refs, backend, num_bytes)
            weights = _open(path, identity, refs, backend, cache.use_mmap)
    if weights is None:
        raise OSError(f"{path} is damaged right after writing; the disk or the memory is failing")
    return weights


def _open(
    path: Path,
    identity: Mapping[str, str],
    refs: Mapping[str, Ref],
    backend: MappableBackend,
    use_mmap: bool,
) -> LoadedWeights | None:
    """Opens the weights in a file; returns None and logs the reason if it can't be used."""
    start = time.perf_counter()
    try:
        file = PackedFile(path, use_mmap=use_mmap)
        _check(file, identity, refs, backend)
    except FileNotFoundError:
        return None
    except PackedFileError as error:
        logger.warning("%s can't be used: %s; packing again", path, error)
        return None
    constants = {
        name: backend.from_memory(ref, file.address(name), file.entries[name].nbytes, file.memory)
        for name, ref in refs.items()
    }
    if not use_mmap:
        logger.info("%s: read and checked in %.1f s", path, time.perf_counter() - start)
        return LoadedWeights(constants, file.memory)
    share = file.huge_page_bytes() / file.nbytes
    logger.info(
        "%s: mapped and checked in %.1f s, %.0f %% of it in huge pages",
        path,
        time.perf_counter() - start,
        100 * share,
    )
    if 0 < share < MIN_HUGE_SHARE:
        logger.warning(
            "%s: only %.0f %% of it is in huge pages, since memory was fragmented when it was "
            "read; large models then decode slower by up to half. Set use_mmap to false, which "
            "uses memory of this process, or before the next start, as root: "
            "echo 3 > /proc/sys/vm/drop_caches; echo 1 > /proc/sys/vm/compact_memory",
            path,
            100 * share,
        )
    return LoadedWeights(constants, file.memory, is_mapped=True)


def _check(
    file: PackedFile, identity: Mapping[str, str], refs: Mapping[str, Ref], backend: MappableBackend
) -> None:
    stale = sorted(key for key in identity if file.identity.get(key) != identity[key])
    if stale:
        raise PackedFileError(f"it was written for another {', '.join(stale)}")
    if missing := sorted(refs.keys() - file.entries.keys()):
        raise PackedFileError(f"constant {missing[0]} is missing")
    for name in refs:
        entry = file.entries[name]
        # Reads everything once, on all threads; that also loads the pages.
        if backend.checksum(file.address(name), entry.nbytes) != entry.checksum:
            raise PackedFileError(f"constant {name} is damaged")


def _write(
    path: Path,
    identity: Mapping[str, str],
    checkpoint: Checkpoint,
    refs: Mapping[str, Ref],
    backend: MappableBackend,
    num_bytes: int,
) -> None:
    start = time.perf_counter()
    for leftover in path.parent.glob(f".{path.name}.*.partial"):
        # From a crashed process: a running one would hold the lock.
        leftover.unlink(missing_ok=True)
    free = shutil.disk_usage(path.parent).free
    if free < num_bytes:
        raise OSError(f"the file needs {num_bytes} bytes, {free} are free there")
    partial = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}.partial"
    try:
        with PackedFileWriter(partial) as writer:
            # A tied lm_head is the embedding again, and follows it directly.
            previous: tuple[str, Any] = ("", None)

            def pack(ref: Ref, tensor: Any) -> None:
                nonlocal previous
                packed = backend.pack(ref, tensor)
                if packed is previous[1]:
                    writer.add_alias(ref.name, previous[0])
                    return
                checksum = backend.checksum(packed.data_ptr(), packed.nbytes)
                writer.add(ref.name, packed, checksum)
                previous = (ref.name, packed)

            load_weights(checkpoint, refs, pack)
            writer.finish(identity)
        os.replace(partial, path)
        _sync_directory(path.parent)
    finally:
        partial.unlink(missing_ok=True)
    logger.info("%s: packed in %.1f s", path, time.perf_counter() - start)


def _digest(refs: Mapping[str, Ref]) -> str:
    listed = sorted(
        f"{name} {ref.dtype.label} {ref.shape} {ref.layout.value}" for name, ref in refs.items()
    )
    return hashlib.sha256("\n".join(listed).encode()).hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lets one process at a time write a file; the lock is released when its holder exits."""
    fd = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
