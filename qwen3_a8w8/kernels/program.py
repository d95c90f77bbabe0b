"""A recorded callable: the list of op calls that its Python function made.

`record` runs the function once with symbolic tensors (`Ref`), so nothing is
allocated or computed. Backends lower the resulting `Program` to whatever
replays fastest: one native call on CPU, a captured graph elsewhere.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qwen3_a8w8.errors import SignatureError
from qwen3_a8w8.kernels.signature import Dim, Direction, DType, Signature, read_signature

if TYPE_CHECKING:
    from qwen3_a8w8.kernels.ops import Ops

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
        index: unique within its program.
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
    """One op call: inputs are read, outputs wholly written, `updates` partly written."""

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
    """A signature and the op calls that fulfil it."""

    signature: Signature
    refs: tuple[Ref, ...]
    nodes: tuple[Node, ...]

    @property
    def constants(self) -> dict[str, Ref]:
        """Constants by name: what has to be bound before the first run."""
        return {ref.name: ref for ref in self.refs if ref.kind is RefKind.CONST}

    @property
    def active_count(self) -> tuple[str, Dim] | None:
        """(parameter, Dim) if a parameter counts the live leading rows of a Dim."""
        for param in self.signature.params:
            if param.spec.counts is not None:
                return param.name, param.spec.counts
        return None


def record(
    fn: Callable[..., Any], dims: Mapping[str, int], options: Mapping[str, int | float]
) -> Program:
    """Records a callable.

    Args:
        fn: see `signature.py`.
        dims: static extents by name.
        options: further numbers the function may look up, e.g. the norms' epsilon.

    Returns:
        The program.

    Raises:
        SignatureError: an op got operands that don't fit, an output parameter was never
            written, or something was returned that isn't an output parameter.
    """
    from qwen3_a8w8.kernels.ops import Ops  # ops builds Refs and Nodes from this module

    signature = read_signature(fn, dims)
    ops = Ops(signature.name, dims, options)
    args = {
        param.name: ops.argument(param.name, param.dtype, param.shape) for param in signature.params
    }
    returned = fn(ops, **args)
    _check_outputs(signature, ops, args, returned)
    return Program(signature, tuple(ops.refs), tuple(ops.nodes))


def _check_outputs(
    signature: Signature, ops: Ops, args: Mapping[str, Ref], returned: object
) -> None:
    outputs = {p.name for p in signature.params if p.spec.direction is Direction.OUT}
    found = returned if isinstance(returned, tuple) else (returned,)
    names = {
        r.name if isinstance(r, Ref) and args.get(r.name) == r else f"{r!r:.60}" for r in found
    }
    if names != outputs:
        raise SignatureError(
            f"{signature.name} returns {sorted(names)}, but declares the outputs "
            f"{sorted(outputs)}; return exactly the parameters annotated with Out"
        )
    written = {ref for node in ops.nodes for ref in node.outputs}
    unwritten = sorted(name for name in outputs if args[name] not in written)
    if unwritten:
        raise SignatureError(f"{signature.name} never writes its outputs {unwritten}")
