"""What a captured graph is made of: calls, and tensors of its own and of others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_npu._emulation.refusals import ContractError
from torch_npu.npu.streams import ExternalEvent

if TYPE_CHECKING:
    from torch_npu.npu.graphs import NPUGraph


@dataclass
class OutsideTensor:
    """A tensor that existed before the capture: its address, but not its memory."""

    storage: StorageWeakRef
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @staticmethod
    def of(tensor: Tensor) -> OutsideTensor:
        return OutsideTensor(
            StorageWeakRef(tensor.untyped_storage()),
            tensor.dtype,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.storage_offset(),
        )

    def tensor(self) -> Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None:
            raise ContractError(
                f"a graph is replayed that reads or writes freed memory: a {self.dtype} tensor "
                f"of shape {self.size}, which its owner has dropped since the capture"
            )
        empty = torch.empty(0, dtype=self.dtype)
        return empty.set_(storage, self.offset, self.size, self.stride)


@dataclass
class Op:
    """One recorded call; `results` are tensors of the graph's own memory, None those of others."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Tensor | None]
    event: ExternalEvent | None = None
    group: object | None = None


@dataclass
class TaskGroup:
    """What `graph_task_group_end` returns: ops whose arguments may be updated."""

    ops: list[Op] = field(default_factory=list)
    graph: NPUGraph | None = None


def key_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def is_view(func: Any) -> bool:
    returns = func._schema.returns
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns) or (
        func._schema.name in ("aten::detach", "aten::alias", "aten::_reshape_alias")
    )


def resolved(value: Any) -> Any:
    leaves, spec = tree_flatten(value, is_leaf=lambda item: isinstance(item, OutsideTensor))
    found = [item.tensor() if isinstance(item, OutsideTensor) else item for item in leaves]
    return tree_unflatten(found, spec)
