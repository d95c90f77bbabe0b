"""A stand-in for torch_npu that runs on the CPU and holds every call to the op's document.

Put `tools/npu_emulation` on PYTHONPATH; `import torch_npu` then defines namespace `npu` from a
wheel's own schemas and metas (`npu_schemas.py` fetches them), registers CPU kernels written from
the documents of the ops, and sets `torch.npu`. It is for tests, without hardware: it shows
wrong arguments, layouts, formats, lengths and orders of calls. It shows neither speed nor
the bits of a device, nor anything about ops whose documents are wrong.

Tensors live on device "cpu", or on "meta" (`EMULATED_TORCH_DEVICE`). The environment variable
NPU_EMULATION chooses what is emulated, see `_emulation/options.py`; `_emulation/definitions.py`
registers, one file per family of ops computes, `npu/graphs.py` records graphs.
"""

from __future__ import annotations

import enum
import sys

import torch

from torch_npu._emulation.options import options

__version__ = options.reported_version
EMULATED_TORCH_DEVICE = options.device
"""The real torch_npu has no such name; there the device is "npu"."""


class Format(enum.IntEnum):
    """Formats of tensors."""

    ND = 2
    FRACTAL_NZ = 29


# dtype codes that the metas compare with; no dtype of CPU torch has them.
(
    int4,
    float4_e2m1fn_x2,
    float8_e8m0fnu,
    hifloat8,
    float4_e2m1,
    float4_e1m2,
    float4_e1m2fn_x2,
    float8_e5m2,
    float8_e4m3fn,
) = range(285, 294)

from torch_npu import npu  # noqa: E402
from torch_npu._emulation import definitions  # noqa: E402

definitions.define_ops()

from torch_npu._emulation import (  # noqa: E402, F401
    attention_ops,
    cache,
    linear,
    rotary,
    rows,
    sampling,
)

definitions.expose_ops()

# Tensors are small here: handing parts of them to other threads costs more than it saves.
torch.set_num_threads(1)

torch.npu = npu  # type: ignore[attr-defined]
sys.modules.setdefault("torch.npu", npu)
