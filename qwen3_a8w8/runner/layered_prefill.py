"""Prefill dispatches that compute the layers in groups, one group per step.

Keeps the residual stream of the unfinished dispatch in device memory. The computation
is in `model/layered_prefill.py`; the plan selects the next group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from qwen3_a8w8.engine.plan import PrefillChunk
from qwen3_a8w8.kernels.backend import CompiledCallable, Compiler
from qwen3_a8w8.kernels.signature import FLOAT32
from qwen3_a8w8.model import layered_prefill as model
from qwen3_a8w8.runner.packing import Arrays
from qwen3_a8w8.runner.worker import Worker, WorkerTensor

LayerGroup = tuple[int, int]


class Dispatch(Protocol):
    """Uploads inputs and runs one callable; `DeviceModel.dispatch` is one."""

    def __call__(
        self, callable_id: int, name: str, arrays: Arrays, **outputs: WorkerTensor
    ) -> None:
        """See `DeviceModel.dispatch`."""
        ...


def layer_groups(num_layers: int, layers_per_dispatch: int) -> tuple[LayerGroup, ...]:
    """The groups [start, end) of layers that a prefill computes one after the other."""
    return tuple(
        (start, min(start + layers_per_dispatch, num_layers))
        for start in range(0, num_layers, layers_per_dispatch)
    )


class LayeredPrefill:
    """The callables of all groups, and the dispatch that is unfinished between two of them.

    Attributes:
        groups: in order; a dispatch computes all of them.
        chunks: chunks of the unfinished dispatch; empty between dispatches.
        next_layer: layer at which it continues.
    """

    def __init__(
        self,
        compiler: Compiler,
        dims: Mapping[str, int],
        options: Mapping[str, int | float],
        groups: tuple[LayerGroup, ...],
    ) -> None:
        self.groups = groups
        self.chunks: tuple[PrefillChunk, ...] = ()
        self.next_layer = 0
        self._hidden_size = dims["HIDDEN"]
        self._hidden: WorkerTensor | None = None
        self._embed = compiler.compile(model.embed, dims, options)
        self._layers = {
            (start, end): compiler.compile(
                model.layers,
                dims,
                {**options, model.LAYER_BEGIN: start, model.LAYER_END: end},
            )
            for start, end in groups
        }
        self._logits = compiler.compile(model.logits, dims, options)

    @property
    def callables(self) -> list[CompiledCallable]:
        """All callables, for binding weights."""
        return [self._embed, *self._layers.values(), self._logits]

    def register(self, worker: Worker, max_tokens: int) -> None:
        """Registers the callables with a worker and allocates the residual stream."""
        self._embed_id = worker.register(self._embed)
        self._layer_ids = {group: worker.register(fn) for group, fn in self._layers.items()}
        self._logits_id = worker.register(self._logits)
        self._hidden = worker.alloc((max_tokens, self._hidden_size), FLOAT32)

    def run(
        self,
        dispatch: Dispatch,
        cache: Mapping[str, WorkerTensor],
        chunks: Sequence[PrefillChunk],
        layers: LayerGroup,
        arrays: Arrays,
        logits: WorkerTensor,
    ) -> None:
        """Computes chunks through one group of layers.

        Args:
            dispatch: runs a callable on the device.
            cache: the KV cache as arguments of callables, by name.
            chunks: as many as `arrays` was packed from.
            layers: one of `groups`; the first one starts a dispatch.
            arrays: see `packing.pack_prefill`.
            logits: written with the last group.
        """
        start, end = layers
        if start == 0:
            self.chunks = tuple(chunks)
        else:
            self._drop_all_but(chunks)
        hidden = self._residual(len(arrays["token_ids"]))
        if start == 0:
            ids = {"token_ids": arrays["token_ids"]}
            dispatch(self._embed_id, "prefill", ids, hidden=hidden)
        inputs = {k: v for k, v in arrays.items() if k not in ("token_ids", "logits_indices")}
        dispatch(self._layer_ids[layers], "prefill", inputs, hidden=hidden, **cache)
        self.next_layer = end
        if layers == self.groups[-1]:
            self.chunks = ()
            indices = {"logits_indices": arrays["logits_indices"]}
            dispatch(self._logits_id, "prefill", indices, hidden=hidden, logits=logits)

    def _residual(self, num_tokens: int) -> WorkerTensor:
        assert self._hidden is not None  # `register` is called before the first plan
        return self._hidden.view(num_tokens, self._hidden_size)

    def _drop_all_but(self, chunks: Sequence[PrefillChunk]) -> None:
        """Compacts the residual stream after chunks of ended sequences were removed."""
        if tuple(chunks) == self.chunks:
            return
        kept: list[np.ndarray] = []
        first = 0
        for chunk in self.chunks:
            if chunk in chunks:
                kept.append(np.arange(first, first + chunk.num_tokens))
            first += chunk.num_tokens
        hidden = self._residual(first).to_continuous_tensor()
        rows = hidden[np.concatenate(kept)]
        hidden[: len(rows)] = rows
        self.chunks = tuple(chunks)
