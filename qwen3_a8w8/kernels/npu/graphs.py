"""Decode steps as captured graphs, one per batch size.

A graph replays the recorded ops on the recorded addresses, so that a step costs the host one launch
instead of a thousand. What changes from step to step is read from memory by the ops themselves,
but for the lengths of attention: those are host arguments and are updated at each replay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from qwen3_a8w8.kernels.npu.device import NpuDevice

logger = logging.getLogger(__name__)

Outputs = Mapping[str, Tensor]


@dataclass(slots=True)
class _Captured:
    """A graph, what it reads (kept alive, since the addresses are in the graph), what it writes."""

    args: dict[str, Tensor]
    graph: Any = None
    outputs: Outputs | None = None

    def is_of(self, args: Mapping[str, Tensor]) -> bool:
        return all(args[name].data_ptr() == tensor.data_ptr() for name, tensor in self.args.items())


class DecodeGraphs:
    """The graphs of one program.

    Args:
        device: captures and replays.
    """

    def __init__(self, device: NpuDevice) -> None:
        self._device = device
        self._captured: dict[tuple[int, ...], _Captured] = {}
        self.no_graphs = ""

    def run(
        self,
        args: Mapping[str, Tensor],
        dims: Mapping[str, int],
        lengths: list[int],
        record: Callable[[], Outputs],
    ) -> Outputs | None:
        """Replays the graph of these arguments, and captures it first if they come again.

        Args:
            args: all arguments; their addresses are part of the graph.
            dims: values of the run-time Dims.
            lengths: of attention's rows, as `AttentionKernels.call_lengths` gives them.
            record: runs the ops once, with outputs of their own.

        Returns:
            The outputs by name; None: run the ops eagerly, because these arguments are new or
            because the device can't capture.
        """
        if self.no_graphs:
            return None
        key = tuple(dims.values())
        known = self._captured.get(key)
        if known is None or not known.is_of(args):
            # The first time ops run eagerly: they may compile, or allocate workspaces.
            self._captured[key] = _Captured(dict(args))
            return None
        if known.graph is None and not self._capture(known, record):
            return None
        # Each replay waits for its lengths, even if they are those of the last one.
        self._device.update(known.graph, [{"actual_seq_lengths_kv": lengths}])
        self._device.replay(known.graph)
        return known.outputs

    def close(self) -> None:
        """Drops the graphs and what they refer to; may be called again."""
        self._captured.clear()

    def _capture(self, captured: _Captured, record: Callable[[], Outputs]) -> bool:
        try:
            graph = self._device.new_graph()
            with self._device.capture(graph):
                captured.outputs = record()
        except RuntimeError as error:
            self.no_graphs = " ".join(str(error).split())
            logger.warning("decode runs eagerly, without graphs: %s", self.no_graphs)
            self.close()
            return False
        captured.graph = graph
        return True
