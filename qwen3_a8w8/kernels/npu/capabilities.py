"""What an NPU must have, asked of the device before anything is loaded onto it.

Versions alone don't say which ops have which arguments (`npu_scatter_pa_kv_cache` got its
`cache_mode` in patches of several releases), so that schemas are asked, and a mode that a schema
can't show is tried on a cache of one block.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch

from qwen3_a8w8.errors import KernelUnavailableError
from qwen3_a8w8.kernels.npu.device import NpuDevice

OLDEST_TORCH_NPU = (2, 7, 1)
"""The first release that has every op of `REQUIRED`."""
_GENERATIONS = {"A2": range(220, 226), "A3": range(250, 256)}
"""Numbers of chips by generation of Atlas.  Source: get_soc_version of torch_npu."""

REQUIRED: dict[str, tuple[str, ...]] = {
    "npu_dynamic_quant": (),
    "npu_quant_matmul": ("pertoken_scale", "output_dtype"),
    "npu_format_cast": (),
    "npu_rms_norm": ("epsilon",),
    "npu_swiglu": ("dim",),
    "npu_apply_rotary_pos_emb": ("layout",),
    "npu_scatter_pa_kv_cache": ("cache_mode",),
    "npu_fused_infer_attention_score": (
        "actual_seq_lengths",
        "actual_seq_lengths_kv",
        "block_table",
        "key_antiquant_mode",
    ),
}
"""Ops without which there is no backend, and the arguments that they are called with."""

BLOCK_SIZE = 128
ANTIQUANT_PER_TOKEN_HEAD = 5
"""Mode in which K and V have one scale per token and head, in pages as the values are."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What was found.

    Attributes:
        generation: "A2" or "A3".
        soc: the chip's name.
        cann: version of CANN.
        torch_npu: version of torch_npu.
        reads_int8_cache: attention reads the int8 cache; otherwise blocks are gathered and
            dequantised first.
        no_int8_cache: the device's reason if it doesn't, else "".
        is_emulated: nothing here is about hardware.
    """

    generation: str
    soc: str
    cann: str
    torch_npu: str
    reads_int8_cache: bool
    no_int8_cache: str
    is_emulated: bool

    def describe(self) -> dict[str, str | int | float]:
        """For logs and reports."""
        found: dict[str, str | int | float] = {
            "soc": f"{self.soc} (Atlas {self.generation})",
            "cann": self.cann,
            "torch_npu": f"{self.torch_npu}{' (emulated)' if self.is_emulated else ''}",
            "int8_cache": "read by attention"
            if self.reads_int8_cache
            else f"gathered and dequantised: {self.no_int8_cache}",
        }
        return found


def probe(device: NpuDevice) -> Capabilities:
    """Asks a device for what the kernels need.

    Raises:
        KernelUnavailableError: something is missing without which nothing runs; says what was
            found and what would do.
    """
    soc = device.soc_version
    generation = next((name for name, numbers in _GENERATIONS.items() if soc in numbers), None)
    if generation is None:
        known = ", ".join(f"{n} {r[0]} to {r[-1]}" for n, r in _GENERATIONS.items())
        raise _refusal(f"chip {device.name} has SoC number {soc}", f"Atlas {known} are supported")
    cann = device.cann_version
    if not cann:
        raise _refusal("CANN isn't found", "source CANN's set_env.sh before Ray starts")
    _check_version(device.version)
    _check_ops(device)
    reason = _why_no_int8_cache(device)
    return Capabilities(
        generation, device.name, cann, device.version, not reason, reason, device.is_emulated
    )


def _refusal(fact: str, remedy: str) -> KernelUnavailableError:
    return KernelUnavailableError(f"device 'npu': {fact}; {remedy}, or use device='cpu'")


def _check_version(version: str) -> None:
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None or tuple(map(int, found.groups())) < OLDEST_TORCH_NPU:
        oldest = ".".join(map(str, OLDEST_TORCH_NPU))
        raise _refusal(f"torch_npu is {version}", f"install {oldest} or newer (docs/ascend.md)")


def _check_ops(device: NpuDevice) -> None:
    for op, wanted in REQUIRED.items():
        schema = device.schema(op)
        if schema is None:
            raise _refusal(
                f"torch_npu {device.version} has no op {op}", "install another (docs/ascend.md)"
            )
        missing = sorted(set(wanted) - {argument.name for argument in schema.arguments})
        if missing:
            raise _refusal(
                f"torch_npu {device.version}: {op} has no argument {missing[0]}",
                "install a newer one (docs/ascend.md)",
            )


def _why_no_int8_cache(device: NpuDevice, head_dim: int = 128) -> str:
    """Why attention doesn't read an int8 cache of one block right; "" if it does.

    Every key is zero, so that all weights are equal and the answer is the value of every token,
    2 * 0.5, exactly.
    """
    shape = (2, 1, BLOCK_SIZE, head_dim)
    where = torch.device(device.torch_device)
    half = torch.full(shape[:3], 0.5, dtype=torch.float32, device=where)
    zero = torch.zeros_like(half)
    try:
        out = device.torch_npu.npu_fused_infer_attention_score(
            torch.ones(1, 1, 1, head_dim, dtype=torch.bfloat16, device=where),
            torch.zeros(shape, dtype=torch.int8, device=where),
            torch.full(shape, 2, dtype=torch.int8, device=where),
            actual_seq_lengths_kv=[BLOCK_SIZE],
            block_table=torch.ones(1, 1, dtype=torch.int32, device=where),
            num_heads=1,
            num_key_value_heads=1,
            scale=1 / math.sqrt(head_dim),
            input_layout="BNSD",
            block_size=BLOCK_SIZE,
            key_antiquant_scale=half,
            value_antiquant_scale=half,
            key_antiquant_offset=zero,
            value_antiquant_offset=zero,
            key_antiquant_mode=ANTIQUANT_PER_TOKEN_HEAD,
            value_antiquant_mode=ANTIQUANT_PER_TOKEN_HEAD,
        )[0]
        device.synchronize()
        answer = out.float().cpu()
    except torch.OutOfMemoryError as error:
        raise _refusal(" ".join(str(error).split()), "end what else runs on it") from error
    except RuntimeError as error:
        return f"attention refuses antiquant mode 5 ({' '.join(str(error).split())})"
    worst = float((answer - 1).abs().max())
    return "" if worst <= 2.0**-7 else f"antiquant mode 5 is off by {worst:g} where 1 is right"
