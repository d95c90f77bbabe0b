"""Limits of a device for benchmarks: bytes read and int8 products per second.

Both are measured by the ops that the kernels use, since nothing else says what they can reach.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType

import torch

_MAX_SECONDS = 0.2
_LEAST_CALL_S = 1e-3
_SIDES = (512, 1024, 2048, 4096, 8192)


def read_bytes_per_s(
    torch_npu: ModuleType, device: torch.device | str, num_bytes: int, passes: int
) -> list[float]:
    """How fast the device reads its memory: the rate of a copy, which reads and writes.

    Args:
        torch_npu: the module, which only the device's owner imports.
        device: of the memory.
        num_bytes: size of the buffer, which is allocated twice; larger than any cache.
        passes: most measurements; after 0.2 s there are no more.

    Returns:
        Bytes per second of each pass, reads and writes together.
    """
    source = torch.zeros(num_bytes // 2, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    return [
        2 * source.numel() / each
        for each in _seconds(torch_npu, lambda: target.copy_(source), passes)
    ]


def int8_products_per_s(
    torch_npu: ModuleType, device: torch.device | str, passes: int
) -> list[float]:
    """int8 multiply-adds per second of a square `npu_quant_matmul` of at least a millisecond.

    Args:
        torch_npu: the module, which only the device's owner imports.
        device: that computes.
        passes: most measurements; after 0.2 s there are no more.
    """
    for side in _SIDES:
        x = torch.ones(side, side, dtype=torch.int8, device=device)
        scale = torch.ones(side, dtype=torch.float32, device=device)

        def multiply(x: torch.Tensor = x, scale: torch.Tensor = scale) -> torch.Tensor:
            product: torch.Tensor = torch_npu.npu_quant_matmul(
                x, x, scale, pertoken_scale=scale, output_dtype=torch.bfloat16
            )
            return product

        seconds = _seconds(torch_npu, multiply, passes)
        if min(seconds) >= _LEAST_CALL_S or side == _SIDES[-1]:
            break
    return [side**3 / each for each in seconds]


def _seconds(torch_npu: ModuleType, call: Callable[[], object], passes: int) -> list[float]:
    """Seconds of each call, after one that isn't counted."""
    call()
    torch_npu.npu.synchronize()
    seconds: list[float] = []
    while len(seconds) < passes and sum(seconds) < _MAX_SECONDS:
        start = time.perf_counter()
        call()
        torch_npu.npu.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds
