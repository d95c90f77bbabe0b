"""Chooses the backend of a device."""

from __future__ import annotations

import logging

from qwen3_a8w8.errors import KernelUnavailableError
from qwen3_a8w8.kernels.backend import Backend

logger = logging.getLogger(__name__)


def select_backend(device: str, num_threads: int | None, isa: str | None = None) -> Backend:
    """Makes the backend for a device, in the process that is going to own it.

    "auto" looks for an NPU from a child process first, so that this one doesn't import torch_npu
    unless it takes the NPU.

    Args:
        device: "auto", "cpu", "npu" or "cuda".
        num_threads: CPU threads; None: the cores this process may use.
        isa: instruction path of the CPU kernels by name; None: the fastest.

    Raises:
        KernelUnavailableError: the device is named explicitly and can't run here.
    """
    if device == "cuda":
        raise KernelUnavailableError(
            f"device {device!r} has no kernels in this version; use device='cpu' or 'auto'"
        )
    if device in ("npu", "auto"):
        from qwen3_a8w8.kernels.npu.look import look

        try:
            if device == "auto":
                look()
            from qwen3_a8w8.kernels.npu.backend import NpuBackend

            return NpuBackend(num_threads)
        except KernelUnavailableError as error:
            if device == "npu":
                raise
            logger.info("device auto: cpu (%s; cuda has no kernels in this version)", error)
    from qwen3_a8w8.kernels.cpu.backend import CpuBackend  # loads the native library

    return CpuBackend(isa=isa, num_threads=num_threads)
