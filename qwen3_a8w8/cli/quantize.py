"""`qwen3-a8w8 quantize`: write a W8A8 checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress


def quantize(
    src: Annotated[str, typer.Argument(help="bf16, fp16 or fp32 checkpoint: directory or hub id.")],
    dst: Annotated[Path, typer.Argument(help="New directory for the W8A8 checkpoint.")],
) -> None:
    """Quantise a checkpoint to W8A8 (round to nearest) in compressed-tensors format."""
    from qwen3_a8w8.checkpoint.quantize import quantize_checkpoint  # brings torch
    from qwen3_a8w8.checkpoint.resolve import resolve_model

    console = Console(stderr=True)
    with Progress(console=console) as progress:
        task = progress.add_task("quantising", total=None)

        def on_progress(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        summary = quantize_checkpoint(resolve_model(src), dst, on_progress)
    console.print(
        f"{summary.path}: {summary.num_linears} linears, {summary.written_bytes / 2**20:.1f} MiB "
        f"(from {summary.source_bytes / 2**20:.1f} MiB)"
    )
