"""Keeps book of tensors that were cast to FRACTAL_NZ; their values stay row-major here.

A device stores such a tensor in another order, so that only ops that know the format read it
correctly, and only as a whole.

Source: document "torch_npu.npu_format_cast".
"""

from __future__ import annotations

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

ND = 2
FRACTAL_NZ = 29

_casts: dict[int, tuple[StorageWeakRef, int]] = {}


def record_cast(tensor: Tensor, acl_format: int) -> Tensor:
    """Notes the format of a tensor that owns its whole storage."""
    for key, (storage, _) in list(_casts.items()):
        if storage.expired():
            del _casts[key]
    weak = StorageWeakRef(tensor.untyped_storage())
    # While the weak reference lives, no other storage has this key.
    _casts[weak.cdata] = (weak, acl_format)
    return tensor


def format_of(tensor: Tensor) -> int:
    """The format of a tensor: that of its storage, or ND."""
    if tensor.device.type != "cpu" or not _casts:
        return ND
    entry = _casts.get(tensor.untyped_storage()._cdata)
    return ND if entry is None or entry[0].expired() else entry[1]


def is_whole(tensor: Tensor) -> bool:
    """Whether a view covers all of its storage."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
