"""`qwen3-a8w8 synth`: write a checkpoint with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from qwen3_a8w8.cli.progress import progress_bar


def synth(
    dst: Annotated[Path, typer.Argument(help="New directory for the checkpoint.")],
    shape: Annotated[str, typer.Option(help="A published size: qwen3-0.6b, ... qwen3-32b.")],
    seed: Annotated[int, typer.Option(min=0, help="Makes the weights reproducible.")] = 0,
) -> None:
    """Write a random W8A8 checkpoint of a published size, to measure memory and speed."""
    from qwen3_a8w8.checkpoint.new_directory import check_is_new
    from qwen3_a8w8.checkpoint.shapes import named_shape
    from qwen3_a8w8.checkpoint.synth import synth_checkpoint  # imports torch

    config = named_shape(shape)  # errors are reported before the bar is shown
    check_is_new(dst)
    console = Console(stderr=True)
    with progress_bar(console, "writing") as on_progress:
        summary = synth_checkpoint(config, dst, on_progress, seed=seed)
    console.print(
        f"{summary.path}: {summary.num_linears} linears, {summary.written_bytes / 2**30:.2f} GiB"
    )
