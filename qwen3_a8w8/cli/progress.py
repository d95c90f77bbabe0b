"""The progress bar of commands that process a checkpoint."""

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
        what: the activity, e.g. "quantising".

    Yields:
        A function to call with the completed and the total amount.
    """
    with Progress(console=console) as progress:
        task = progress.add_task(what, total=None)

        def on_progress(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield on_progress
