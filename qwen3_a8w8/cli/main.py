"""Entry point of `qwen3-a8w8`: registers the commands and prints our errors as messages."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.console import Console

from qwen3_a8w8 import __version__
from qwen3_a8w8.cli import bench
from qwen3_a8w8.cli.chat import chat
from qwen3_a8w8.cli.check import check
from qwen3_a8w8.cli.doctor import doctor
from qwen3_a8w8.cli.generate import generate
from qwen3_a8w8.cli.inspect import inspect
from qwen3_a8w8.cli.quantize import quantize
from qwen3_a8w8.cli.serve import serve
from qwen3_a8w8.cli.synth import synth
from qwen3_a8w8.errors import Qwen3A8W8Error

app = typer.Typer(
    name="qwen3-a8w8",
    help="Serve Qwen3 dense models with int8 weights and int8 activations.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (serve, generate, chat, quantize, inspect, check, synth, doctor):
    app.command()(command)
app.add_typer(bench.app, name="bench")


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    del version


def main() -> None:
    """Runs the command line; our own errors become one message and status 1."""
    # Otherwise `import torch` imports an installed torch_npu, in commands that need no device, too.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    try:
        app()
    except Qwen3A8W8Error as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False)
        sys.exit(1)


if __name__ == "__main__":
    main()
