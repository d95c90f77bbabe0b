"""Chooses the backend of a device."""

from __future__ import annotations

import logging

from qwen3_a8w8.errors import KernelUnavailableError
from qwen3_a8w8.kernels.backend import Backend

logger = logging.getLogger(__name__)


def select_backend(device: str, num_threads: int | None, isa: str | None = None) -> Backend:
    """Makes the backend for a device.

    Args:
        device: "auto", "cpu", "npu" or "cuda".
        num_threads: CPU threads; None: the cores this process may use.
        isa: instruction path of the CPU kernels by name; None: the fastest.

    Raises:
        KernelUnavailableError: the device is named explicitly and can't run here.
    """
    if device == "npu":
        raise _no_npu_backend()
    if device == "cuda":
        raise KernelUnavailableError(
            f"device {device!r} has no kernels in this version; use device='cpu' or 'auto'"
        )
    from qwen3_a8w8.kernels.cpu.backend import CpuBackend  # loads the native library

    if device == "auto":
        logger.info("device auto: cpu (npu and cuda have no kernels in this version)")
    return CpuBackend(isa=isa, num_threads=num_threads)


def _no_npu_backend() -> KernelUnavailableError:
    """Why device "npu" can't run: what the machine lacks, else that kernels are missing here."""
    from qwen3_a8w8.kernels.npu.capabilities import probe
    from qwen3_a8w8.kernels.npu.device import NpuDevice

    try:
        found = probe(NpuDevice())
    except KernelUnavailableError as error:
        return error
    listed = ", ".join(f"{name} {value}" for name, value in found.describe().items())
    return KernelUnavailableError(
        f"device 'npu' has no kernels in this version (found: {listed}); use device='cpu' or 'auto'"
    )
