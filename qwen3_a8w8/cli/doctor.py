"""`qwen3-a8w8 doctor`: what this machine can run, and what is missing."""

from __future__ import annotations

import platform
import sys

import typer
from rich.console import Console
from rich.table import Table

from qwen3_a8w8 import __version__
from qwen3_a8w8.errors import Qwen3A8W8Error

_NPU_REPORT = "qwen3_a8w8.runner.npu_report"


def doctor() -> None:
    """Show versions, the kernels this machine can run, and free memory."""
    from importlib.metadata import PackageNotFoundError, version

    from qwen3_a8w8.kernels.cpu.backend import runnable_isas
    from qwen3_a8w8.kernels.npu.look import ask
    from qwen3_a8w8.kernels.select import select_backend
    from qwen3_a8w8.runner.self_check import self_check
    from qwen3_a8w8.runner.sizing import free_host_memory_bytes

    table = Table("what", "found")
    table.add_row("qwen3-a8w8", __version__)
    table.add_row("python", f"{platform.python_version()} on {platform.machine()}")
    for name in ("torch", "ray", "safetensors", "tokenizers", "numpy"):
        try:
            table.add_row(name, version(name))
        except PackageNotFoundError:
            table.add_row(name, "missing: run `make install`")
    is_healthy = True
    for device in ("cpu", "npu", "cuda"):
        try:
            if device == "npu":
                found = ask(_NPU_REPORT)  # torch_npu belongs to the process of an engine
            else:
                backend = select_backend(device, None)
                self_check(backend)
                found = backend.describe()
                backend.close()
        except Qwen3A8W8Error as error:
            table.add_row(device, str(error))
            is_healthy = is_healthy and device != "cpu"
            continue
        table.add_row(device, ", ".join(f"{k} {v}" for k, v in found.items()))
    if is_healthy:
        table.add_row("cpu instruction paths", ", ".join(runnable_isas()))
    table.add_row("free memory", f"{free_host_memory_bytes() / 2**30:.1f} GiB")
    Console().print(table)
    if not is_healthy:
        typer.echo("the CPU kernels can't run here", err=True)
        sys.exit(1)
