"""A double of the graph API that records what is captured, updated and replayed.

As on a device, a capture computes nothing, a replay runs the recorded ops on the recorded
memory, and attention waits in each replay until the host has given it its lengths:

* what a capture returns is garbage until the first replay; caches are untouched by it;
* a replay reads and writes the addresses of the capture. New tensors under the old names are
  not seen; memory that was freed since is an error;
* without an update the graph waits forever, which `synchronize` reports as an error.

`journal` tells tests what happened, in order.

Source: torch_npu/npu/graphs.py of the wheels: `NPUGraph`, `graph`, `_GraphDispatchMode`.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from torch_npu._emulation.options import options
from torch_npu._emulation.refusals import ContractError
from torch_npu.npu._recorded import Op, OutsideTensor, TaskGroup, is_view, key_of, resolved
from torch_npu.npu.streams import ExternalEvent, Stream, current_stream, stream

IN_PLACE = "npu::npu_apply_rotary_pos_emb"
"""Writes to its first two arguments, which its schema doesn't say."""
UPDATABLE = ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2")

journal: list[tuple[str, Any]] = []
"""("capture", number of ops), ("update", per record: what was given), ("replay", number of ops)."""

_capturing: NPUGraph | None = None
_pending: list[Iterator[None]] = []
_waiting_for: ExternalEvent | None = None


class _Recorder(TorchDispatchMode):
    def __init__(self, owner: NPUGraph) -> None:
        super().__init__()
        self.owner = owner
        self.own: set[int] = set()
        self.fresh: list[Tensor] = []
        self.saved: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name
        if name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero"):
            raise RuntimeError(
                f"{name} needs the host to wait for the device, which a captured stream can't: "
                "error code is 107027"
            )
        self._save_mutated(func, args, kwargs)
        result = func(*args, **kwargs)
        if is_view(func):
            return result  # it shares its base's storage, whose contents a replay renews
        results = [item for item in tree_flatten(result)[0] if isinstance(item, Tensor)]
        inputs = {key_of(t) for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)}
        made = [item for item in results if key_of(item) not in inputs]
        self.own.update(key_of(item) for item in made)
        self.fresh += made
        kept = [item if key_of(item) in self.own else None for item in results]
        op = Op(func, self._refer(args), self._refer(kwargs), kept)
        self.owner._add(op)
        return result

    def _save_mutated(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Keeps what the op is about to change, because a capture changes nothing."""
        written: list[Any] = list(args[:2]) if func._schema.name == IN_PLACE else []
        for index, argument in enumerate(func._schema.arguments):
            is_marked = argument.alias_info is not None and argument.alias_info.is_write
            if is_marked or argument.name == "out":
                written.append(kwargs.get(argument.name, args[index : index + 1]))
        for tensor in tree_flatten(written)[0]:
            if isinstance(tensor, Tensor) and key_of(tensor) not in self.own:
                self.saved.append((tensor, tensor.clone()))

    def _refer(self, value: Any) -> Any:
        def one(item: Any) -> Any:
            if isinstance(item, Tensor) and key_of(item) not in self.own:
                return OutsideTensor.of(item)
            return item

        return tree_map(one, value)

    def undo(self) -> None:
        """Puts back what the capture changed, and makes its results garbage."""
        for tensor, before in reversed(self.saved):
            tensor.copy_(before)
        for tensor in self.fresh:
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))
            elif tensor.dtype != torch.bool:
                tensor.fill_(-86)
        self.saved.clear()
        self.fresh.clear()


class NPUGraph:
    """Work that was captured once and can be replayed."""

    def __init__(self) -> None:
        if not options.graph:
            raise RuntimeError(
                "NPUGraph: NPU function error: aclmdlRICaptureBegin, error code is 207000\n"
                "[Error]: The feature is not supported by this version of CANN."
            )
        self.auto_dispatch_capture = False
        self._ops: list[Op] = []
        self._records: list[Op] = []
        self._recorder: _Recorder | None = None
        self._group: TaskGroup | None = None
        self._next_event: ExternalEvent | None = None
        self._is_captured = False

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Starts to record."""
        global _capturing
        if _capturing is not None:
            raise RuntimeError("another graph is being captured")
        if self._is_captured:
            raise RuntimeError("this NPUGraph was captured before; call reset() first")
        _capturing = self
        self._recorder = _Recorder(self)
        self._recorder.__enter__()

    def capture_end(self) -> None:
        """Ends the recording."""
        global _capturing
        assert self._recorder is not None
        self._recorder.__exit__(None, None, None)
        _capturing = None
        self._recorder.undo()
        self._recorder = None
        self._is_captured = True
        journal.append(("capture", len(self._ops)))

    def _add(self, op: Op) -> None:
        if self._next_event is not None:
            op.event, self._next_event = self._next_event, None
        name = op.func._schema.name.removeprefix("npu::")
        if self._group is not None:
            self._group.ops.append(op)
        elif name in UPDATABLE:
            if not self.auto_dispatch_capture:
                pass  # its lengths stay those of the capture
            else:
                op.event = ExternalEvent()
                self._records.append(op)
        self._ops.append(op)

    def update(self, cpu_update_input: list[dict[str, Any]]) -> None:
        """Gives the attention ops their host arguments for the next replay.

        Args:
            cpu_update_input: one dict for all, or one per op in the order of the capture.
        """
        if not self.auto_dispatch_capture:
            raise RuntimeError(
                "The current graph configuration does not support update, "
                "try to capture by setting auto_dispatch_capture=True during capture"
            )
        if len(cpu_update_input) == 1:
            cpu_update_input = cpu_update_input * len(self._records)
        if len(cpu_update_input) != len(self._records):
            raise RuntimeError(
                f"there are {len(self._records)} operators that need to be updated, and "
                f"{len(cpu_update_input)} elements in cpu_update_input"
            )
        journal.append(("update", [dict(item) for item in cpu_update_input]))
        for op, given in zip(self._records, cpu_update_input, strict=True):
            for name, value in given.items():
                # A name that wasn't passed in the capture is ignored, as the wheel does.
                if name in op.kwargs:
                    op.kwargs[name] = list(value) if isinstance(value, (list, tuple)) else value
            assert op.event is not None
            op.event.record()

    def replay(self) -> None:
        """Runs the captured ops; where one waits for an event, the rest follows later."""
        if not self._is_captured:
            raise RuntimeError("NPUGraph.replay before a capture")
        if _pending:
            raise ContractError("a graph is replayed while another waits for its update")
        journal.append(("replay", len(self._ops)))
        _pending.append(self._run())
        continue_pending()

    def _run(self) -> Iterator[None]:
        global _waiting_for
        for op in self._ops:
            if op.event is not None:
                while not op.event.is_recorded:
                    _waiting_for = op.event
                    yield
                op.event.is_recorded = False
            args, kwargs = resolved((op.args, op.kwargs))
            result = op.func(*args, **kwargs)
            fresh = [item for item in tree_flatten(result)[0] if isinstance(item, Tensor)]
            for kept, value in zip(op.results, fresh, strict=True):
                if kept is not None and kept.data_ptr() != value.data_ptr():
                    kept.copy_(value)

    def reset(self) -> None:
        """Drops what was captured."""
        self._ops, self._records, self._is_captured = [], [], False

    def pool(self) -> tuple[int, int]:
        """A token of the graph's memory."""
        return (id(self), 0)


def continue_pending() -> None:
    """Goes on with a replay that waited for an event."""
    global _waiting_for
    if _pending:
        _waiting_for = None
        running = _pending[0]
        try:
            next(running)
        except StopIteration:
            _pending.remove(running)
        except BaseException:
            _pending.clear()
            raise


def check_nothing_waits() -> None:
    """Raises if a replay waits for an event: a device would hang here."""
    if _pending:
        _pending.clear()
        raise ContractError(
            "a replayed graph waits for an event that nobody has recorded: attention was not "
            "given its lengths by update() or a task update; a device would hang here"
        )


def record_wait(event: ExternalEvent) -> None:
    """In a capture: the next op waits for an event in every replay."""
    if _capturing is not None:
        _capturing._next_event = event


class graph:  # noqa: N801  (torch's name)
    """Captures the work of a block into a graph."""

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: Any = None,
        stream: Stream | None = None,
        auto_dispatch_capture: bool = False,
        capture_error_mode: str = "global",
    ) -> None:
        self._graph = npu_graph
        self._stream = stream or Stream()
        self._graph.auto_dispatch_capture = auto_dispatch_capture
        self._context = _stream_context(self._stream)

    def __enter__(self) -> None:
        self._context.__enter__()
        self._graph.capture_begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._graph.capture_end()
        self._context.__exit__(kind, error, trace)


_stream_context = stream


def is_current_stream_capturing() -> bool:
    """Whether a graph is being captured."""
    return _capturing is not None


def graph_pool_handle() -> tuple[int, int]:
    """A token of memory that graphs may share."""
    return (0, 0)


def graph_task_group_begin(stream: Stream) -> None:
    """Begins a group of ops whose arguments can be updated."""
    _expect_capture("graph_task_group_begin")._group = TaskGroup()


def graph_task_group_end(stream: Stream) -> TaskGroup:
    """Ends the group; the handle is for `graph_task_update_begin`."""
    owner = _expect_capture("graph_task_group_end")
    group, owner._group = owner._group, None
    if group is None:
        raise RuntimeError("graph_task_group_end without graph_task_group_begin")
    group.graph = owner
    return group


def _expect_capture(name: str) -> NPUGraph:
    if _capturing is None:
        raise RuntimeError(f"{name} outside of a capture")
    return _capturing


class _Updater(TorchDispatchMode):
    """Takes the calls between update begin and end as new arguments of a group's ops."""

    def __init__(self, group: TaskGroup) -> None:
        super().__init__()
        self.group = group
        self.index = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not func._schema.name.startswith("npu::"):
            return func(*args, **(kwargs or {}))
        if self.index >= len(self.group.ops) or self.group.ops[self.index].func is not func:
            raise ContractError(f"a task update calls {func}, which was not captured there")
        op = self.group.ops[self.index]
        self.index += 1
        op.args = tree_map(_outside, args)
        op.kwargs = {name: tree_map(_outside, value) for name, value in (kwargs or {}).items()}
        lengths = {name: value for name, value in op.kwargs.items() if "seq" in name}
        journal.append(("update", [lengths]))
        return tuple(kwargs["out"] if kwargs and "out" in kwargs else op.results)


def _outside(item: Any) -> Any:
    return OutsideTensor.of(item) if isinstance(item, Tensor) else item


_updating: _Updater | None = None


def graph_task_update_begin(stream: Stream, handle: TaskGroup) -> None:
    """The ops called until the end replace the group's arguments."""
    global _updating
    _updating = _Updater(handle)
    _updating.__enter__()


def graph_task_update_end(stream: Stream) -> None:
    """Ends the update; record the group's ExternalEvent next."""
    global _updating
    if _updating is None:
        raise RuntimeError("graph_task_update_end without graph_task_update_begin")
    _updating.__exit__(None, None, None)
    _updating = None


__all__ = [
    "NPUGraph",
    "check_nothing_waits",
    "continue_pending",
    "current_stream",
    "graph",
    "graph_pool_handle",
    "graph_task_group_begin",
    "graph_task_group_end",
    "graph_task_update_begin",
    "graph_task_update_end",
    "is_current_stream_capturing",
    "journal",
    "record_wait",
]
