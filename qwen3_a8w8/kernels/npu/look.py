"""Looks for an NPU without loading torch_npu into this process.

torch_npu opens the device, starts threads and replaces parts of torch in a process that imports it,
and a driver in a bad state can make it hang. So whoever only wants to know asks a child process,
which has to answer within a time limit. Only the process that is going to own the device, an
engine's, imports torch_npu itself.

`python -m qwen3_a8w8.kernels.npu.look` is that child: one line of JSON on its standard output.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from qwen3_a8w8.errors import KernelUnavailableError

TIME_LIMIT_S = 120.0
"""For torch, torch_npu and CANN to load from a cold disk, and the device to answer."""
_KILL_S = 5.0
_ANSWER = "npu: "

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""Variable of torch: "0" keeps `import torch` from importing an installed torch_npu."""


def look(time_limit_s: float = TIME_LIMIT_S) -> dict[str, str | int | float]:
    """What the NPU is, from a child process that opens and closes it.

    Args:
        time_limit_s: after which the child is ended.

    Returns:
        `Capabilities.describe`.

    Raises:
        KernelUnavailableError: there is no NPU that can be used, or no answer; one line says why.
    """
    return ask("qwen3_a8w8.kernels.npu.look", time_limit_s)


def ask(module: str, time_limit_s: float = TIME_LIMIT_S) -> dict[str, str | int | float]:
    """Runs a module in a child process that calls `answer`.

    Args:
        module: its name.
        time_limit_s: after which the child is ended.

    Raises:
        KernelUnavailableError: as the child's, or it has ended or hung without an answer.
    """
    check_installed()
    # Files, not pipes: what a child has started may hold a pipe open after its end.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            text=True,
            env=os.environ | {AUTOLOAD: "0"},
            start_new_session=True,
        )
        try:
            status = child.wait(time_limit_s)
        except subprocess.TimeoutExpired:
            raise KernelUnavailableError(
                f"device 'npu': no answer within {time_limit_s:g} s (process {child.pid}, now "
                "ended); look at `npu-smi info` and the driver's log, or use device='cpu'"
            ) from None
        finally:
            _end(child)
        out.seek(0)
        err.seek(0)
        lines = [line for line in out.read().splitlines() if line.startswith(_ANSWER)]
        said = err.read().strip().splitlines()
    if not lines:
        last = f": {said[-1]}" if said else ""
        raise KernelUnavailableError(
            f"device 'npu': the process that looked for it ended with status {status}{last}; run "
            f"`python -m {module}` to see why, or use device='cpu'"
        )
    found: dict[str, Any] = json.loads(lines[-1].removeprefix(_ANSWER))
    if "error" in found:
        raise KernelUnavailableError(found["error"])
    return found


def answer(found: dict[str, str | int | float]) -> None:
    """Tells the process that asked, in a child's standard output."""
    print(_ANSWER + json.dumps(found), flush=True)


def check_installed() -> None:
    """Whether a torch_npu could be imported; imports nothing.

    Raises:
        KernelUnavailableError: there is none.
    """
    if importlib.util.find_spec("torch_npu") is None:
        raise KernelUnavailableError(
            "device 'npu' needs torch_npu, which isn't installed; install the version for your "
            "torch and CANN (docs/ascend.md), or use device='cpu'"
        )


def _end(child: subprocess.Popen[str]) -> None:
    """Ends the child and all that it has started; one that hangs in the driver isn't waited for."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, 9)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_KILL_S)


def main() -> None:
    """The child."""
    from qwen3_a8w8.kernels.npu.capabilities import probe
    from qwen3_a8w8.kernels.npu.device import NpuDevice

    try:
        found = probe(NpuDevice()).describe()
    except KernelUnavailableError as error:
        found = {"error": str(error)}
    answer(found)


if __name__ == "__main__":
    main()
