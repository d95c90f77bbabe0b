"""A directory that appears under its name only when it is complete."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qwen3_a8w8.errors import CheckpointError


def check_is_new(target: Path) -> None:
    """Checks that a directory can be created under this name.

    Raises:
        CheckpointError: there is something already, other than an empty directory.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(
            f"{target}: exists and isn't an empty directory; choose another target or remove it"
        )


@contextmanager
def new_directory(target: Path, num_bytes: int) -> Iterator[Path]:
    """Yields a directory to fill; renames it to `target` when the block succeeds.

    Args:
        target: the new directory; may exist if it is empty.
        num_bytes: bytes to be written, to check the free space first.

    Yields:
        A directory next to `target`, so that the rename stays on one file system.

    Raises:
        CheckpointError: the target isn't empty, there is too little space, or it can't be
            written. Nothing is left behind.
    """
    check_is_new(target)
    partial = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.partial"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(target.parent).free
        if free < num_bytes:
            raise CheckpointError(
                f"{target}: the checkpoint needs {num_bytes} bytes, {free} are free there; free "
                "space or choose another target"
            )
        partial.mkdir()
        yield partial
        os.replace(partial, target)
    except OSError as error:
        raise CheckpointError(f"{target}: can't be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
