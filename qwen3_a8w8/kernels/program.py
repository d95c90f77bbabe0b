"""A recorded callable: symbolic tensors (`Ref`) and the op calls (`Node`) on them.

`record.py` turns a Python function into a `Program`. Backends lower it to whatever
replays fastest: one native call on CPU, a captured graph elsewhere.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

from qwen3_a8w8.kernels.signature import Dim, DType, Signature

Shape = tuple[int | Dim, ...]


class RefKind(enum.Enum):
    """Where a symbolic tensor's memory comes from."""

    ARG = "arg"  # the caller's
    CONST = "const"  # a weight or table, bound once
    TEMP = "temp"  # scratch, owned by the compiled callable


class ConstLayout(enum.Enum):
    """How a constant is used, so that a backend may repack it when it is bound."""

    PLAIN = "plain"  # row-major, as declared
    LINEAR_INT8 = "linear_int8"  # [out, in] operand of an int8 linear
    LINEAR_BF16 = "linear_bf16"  # [out, in] operand of a linear that stays in bfloat16
    LM_HEAD = "lm_head"  # [vocab, hidden] operand of the output projection


@dataclass(frozen=True, slots=True)
class Ref:
    """A symbolic tensor.

    Attributes:
        index: its place in `Program.refs`.
        kind: whose memory it is.
        name: the parameter's or the constant's name; a label for temporaries.
        dtype: element type.
        shape: extents, ints or Dims.
        layout: for constants, how they are used.
    """

    index: int
    kind: RefKind
    name: str
    dtype: DType
    shape: Shape
    layout: ConstLayout = ConstLayout.PLAIN

    def num_elements(self, dims: Mapping[str, int]) -> int:
        """Number of elements when the run-time dims have the values `dims`."""
        return math.prod(dims[e.name] if isinstance(e, Dim) else e for e in self.shape)


@dataclass(frozen=True, slots=True)
class Node:
    """One op call: `inputs` are read, `outputs` written completely, `updates` in part."""

    op: str
    inputs: tuple[Ref, ...]
    outputs: tuple[Ref, ...]
    updates: tuple[Ref, ...]
    attrs: tuple[tuple[str, int | float], ...]

    @property
    def attributes(self) -> dict[str, int | float]:
        """Attributes by name."""
        return dict(self.attrs)


@dataclass(frozen=True, slots=True)
class Program:
    """A signature and the op calls that implement it."""

    signature: Signature
    refs: tuple[Ref, ...]
    nodes: tuple[Node, ...]

    @property
    def constants(self) -> dict[str, Ref]:
        """Constants by name: what must be bound before the first run."""
        return {ref.name: ref for ref in self.refs if ref.kind is RefKind.CONST}

    @property
    def active_count(self) -> tuple[str, Dim] | None:
        """(parameter, Dim) if a parameter counts the live leading rows of a Dim."""
        for param in self.signature.params:
            if param.spec.counts is not None:
                return param.name, param.spec.counts
        return None
