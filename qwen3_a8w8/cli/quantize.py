"""`qwen3-a8w8 quantize`: write a W8A8 checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from qwen3_a8w8.cli.progress import progress_bar

_NUM_SUGGESTED = 8


def quantize(
    src: Annotated[str, typer.Argument(help="bf16, fp16 or fp32 checkpoint: directory or hub id.")],
    dst: Annotated[Path, typer.Argument(help="New directory for the W8A8 checkpoint.")],
    method: Annotated[str, typer.Option(help="rtn, smoothquant or smoothquant+gptq.")] = "rtn",
    calibration: Annotated[
        Path | None,
        typer.Option(help="JSONL of {text}, {messages} or {token_ids}; required except for rtn."),
    ] = None,
    max_sequences: Annotated[int, typer.Option(min=1, help="Calibration sequences used.")] = 128,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens used of each sequence.")] = 512,
    keep_float: Annotated[
        list[str] | None,
        typer.Option(help="Regex of linears that stay in floating point; repeatable."),
    ] = None,
    scale_search: Annotated[str, typer.Option(help="absmax or mse.")] = "absmax",
    alpha: Annotated[float, typer.Option(help="SmoothQuant: share moved into weights.")] = 0.5,
    damping: Annotated[float, typer.Option(help="GPTQ: share added to the diagonal.")] = 0.01,
    plot: Annotated[
        Path | None, typer.Option(help="Plot the report as PNG or SVG; needs matplotlib.")
    ] = None,
) -> None:
    """Quantise a checkpoint to W8A8 in compressed-tensors format; resumes if interrupted."""
    from qwen3_a8w8.checkpoint.new_directory import check_is_new
    from qwen3_a8w8.checkpoint.quantize import quantize_checkpoint  # imports torch
    from qwen3_a8w8.checkpoint.quantize_options import QuantizeOptions
    from qwen3_a8w8.checkpoint.quantize_report import plot_report
    from qwen3_a8w8.checkpoint.resolve import resolve_model
    from qwen3_a8w8.text.calibration_file import read_calibration_file

    check_is_new(dst)  # before calibration data is read, which takes time, and the bar is shown
    source = resolve_model(src)
    sequences: tuple[tuple[int, ...], ...] = ()
    if calibration is not None:
        sequences = read_calibration_file(
            calibration, source, max_sequences=max_sequences, max_tokens=max_tokens
        )
    options = QuantizeOptions(
        method=method,
        scale_search=scale_search,
        keep_float=tuple(keep_float or ()),
        calibration=sequences,
        alpha=alpha,
        damping=damping,
    )
    console = Console(stderr=True)
    with progress_bar(console, "quantising") as on_progress:
        summary = quantize_checkpoint(source, dst, on_progress, options=options)
    kept = f", {summary.num_kept} kept in floating point" if summary.num_kept else ""
    console.print(
        f"{summary.path}: {summary.num_linears} linears{kept}, "
        f"{summary.written_bytes / 2**20:.1f} MiB (from {summary.source_bytes / 2**20:.1f} MiB)"
    )
    suggested = summary.suggested_keep_float
    if suggested:
        more = f" and {len(suggested) - _NUM_SUGGESTED} more" * (len(suggested) > _NUM_SUGGESTED)
        console.print(
            f"largest errors, consider --keep-float: {', '.join(suggested[:_NUM_SUGGESTED])}"
            f"{more} (see {summary.report})"
        )
    if plot is not None:
        plot_report(summary.report, plot)
