"""What holds for every op on a device, aten's too: no float64, and no host tensors.

The device has no double precision; torch_npu computes in float32 instead and only logs a
warning. Where host and device are both "cpu" nothing can be said, so that this is for
NPU_EMULATION=device=meta: a block `with DeviceRules():` around what a backend runs.

Source: the warning "Device do not support double dtype now, dtype cast replace with float" in
the documents' examples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from torch_npu._emulation.refusals import OpContract

_DOUBLE = (torch.float64, torch.complex128)
_COPIES = ("aten::_to_copy", "aten::copy_")


class DeviceRules(TorchDispatchMode):
    """Refuses float64 on the device, and ops on tensors of host and device together."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        check = OpContract(func._schema.name)
        inputs = [item for item in tree_flatten((args, kwargs))[0] if isinstance(item, Tensor)]
        # A number on the host, a tensor of no dimensions, may meet a device's tensor.
        places = {item.device.type for item in inputs if item.dim() > 0}
        check.require(
            len(places) < 2 or check.op in _COPIES, f"tensors of {sorted(places)} together"
        )
        result = func(*args, **kwargs)
        for item in tree_flatten(result)[0]:
            if isinstance(item, Tensor) and item.device.type != "cpu":
                check.require(item.dtype not in _DOUBLE, f"gives {item.dtype} on the device")
        return result
