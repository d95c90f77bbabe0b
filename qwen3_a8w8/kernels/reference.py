"""The reference backend, in plain torch: slow and short; other backends are tested against it.

`ReferenceBackend` interprets a program node by node, with the ops of
`reference_ops.py`. It runs wherever torch runs, and is for tests and for readers,
not for serving.

With `is_exact=True` nothing is quantised: activations stay float32, the lm_head's
input isn't rounded, and the backend itself keeps K and V in float32 instead of
using the callable's cache. The result is Qwen3 in float32, comparable with other
implementations to 1e-4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from qwen3_a8w8.kernels.program import Program, Ref
from qwen3_a8w8.kernels.reference_ops import OPS, Values


class ReferenceBackend:
    """Interprets programs in torch on the CPU.

    Args:
        is_exact: skip every quantisation (see the module's docstring); such a backend works with
            a single KV cache.
    """

    device = "cpu"
    has_bf16_activations = False
    is_batch_invariant = True

    def __init__(self, *, is_exact: bool = False) -> None:
        self.is_exact = is_exact
        self.name = "reference-exact" if is_exact else "reference"
        self.float_cache: dict[int, tuple[Tensor, Tensor]] = {}

    def lower(self, program: Program) -> ReferenceExecutable:
        """Wraps the program; nothing is translated."""
        return ReferenceExecutable(program, self)

    def pack(self, ref: Ref, tensor: Tensor) -> Tensor:
        """Keeps constants as they are."""
        del ref
        return tensor

    def describe(self) -> dict[str, str | int | float]:
        """Name only."""
        return {"device": "cpu", "isa": self.name, "threads": torch.get_num_threads()}

    def close(self) -> None:
        """Drops the float caches."""
        self.float_cache.clear()


class ReferenceExecutable:
    """A program and its constants."""

    def __init__(self, program: Program, backend: ReferenceBackend) -> None:
        self._program = program
        self._backend = backend
        self._constants: dict[str, Tensor] = {}

    @property
    def arena_bytes(self) -> int:
        """0: every result is a tensor of its own."""
        return 0

    def bind(self, constants: Mapping[str, Tensor]) -> None:
        """Takes the constants."""
        self._constants = dict(constants)

    def run(self, args: Mapping[str, Any], dims: Mapping[str, int]) -> None:
        """Runs the nodes in order."""
        values = Values(
            self._program,
            args,
            dims,
            self._constants,
            is_exact=self._backend.is_exact,
            float_cache=self._backend.float_cache,
        )
        for node in self._program.nodes:
            OPS[node.op](values, node)

    def close(self) -> None:
        """Holds no scratch."""
