"""The bar that commands show while they go through the layers of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


@contextmanager
def progress_bar(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a bar while the block runs.

    Args:
        console: where to draw.
        what: is being done, e.g. "quantising".

    Yields:
        A function to call with what is done and what there is in all.
    """
    with Progress(console=console) as progress:
        task = progress.add_task(what, total=None)

        def on_progress(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield on_progress
