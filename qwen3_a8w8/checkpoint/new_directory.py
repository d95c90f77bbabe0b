"""A directory that appears under its name when it is complete, and not before."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qwen3_a8w8.errors import CheckpointError


def check_is_new(target: Path) -> None:
    """Checks that a directory can be made under this name.

    Raises:
        CheckpointError: there is something already, other than an empty directory.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(
            f"{target}: exists and isn't an empty directory; choose another target or remove it"
        )


@contextmanager
def new_directory(target: Path, num_bytes: int) -> Iterator[Path]:
    """Gives a directory to fill; renames it to `target` when the block ends well.

    Args:
        target: the new directory; may exist if it is empty.
        num_bytes: what will be written, for a look at the free space beforehand.

    Yields:
        A directory beside `target`, so that the rename stays on one file system.

    Raises:
        CheckpointError: the target holds something, there is too little room, or it can't be
            written. Nothing is left behind.
    """
    check_is_new(target)
    partial = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.partial"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(target.parent).free
        if free < num_bytes:
            raise CheckpointError(
                f"{target}: the checkpoint takes {num_bytes} bytes, {free} are free there; make "
                "room or choose another target"
            )
        partial.mkdir()
        yield partial
        os.replace(partial, target)
    except OSError as error:
        raise CheckpointError(f"{target}: can't be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
