"""Records symbolic tensors and op calls of one callable, and checks operands."""

from __future__ import annotations

from collections.abc import Mapping

from qwen3_a8w8.errors import SignatureError
from qwen3_a8w8.kernels.program import ConstLayout, Node, Ref, RefKind, Shape
from qwen3_a8w8.kernels.signature import FLOAT32, INT8, DType


class Recorder:
    """Base of every family of ops.

    Attributes:
        name: of the callable, for messages.
        dims: its static extents by name.
        options: further numbers that the callable may look up.
        refs: symbolic tensors so far.
        nodes: op calls so far.
    """

    def __init__(
        self, name: str, dims: Mapping[str, int], options: Mapping[str, int | float]
    ) -> None:
        self.name = name
        self.dims = dict(dims)
        self.options = dict(options)
        self.refs: list[Ref] = []
        self.nodes: list[Node] = []
        self._constants: dict[str, Ref] = {}

    def argument(self, name: str, dtype: DType, shape: Shape) -> Ref:
        """A parameter of the callable."""
        return self._ref(RefKind.ARG, name, dtype, shape)

    def constant(
        self,
        name: str,
        dtype: DType,
        shape: tuple[int, ...],
        layout: ConstLayout = ConstLayout.PLAIN,
    ) -> Ref:
        """A weight or table, declared at its first use and bound by name later."""
        ref = self._constants.get(name)
        if ref is None:
            ref = self._ref(RefKind.CONST, name, dtype, shape, layout)
            self._constants[name] = ref
        elif (ref.dtype, ref.shape, ref.layout) != (dtype, shape, layout):
            raise SignatureError(
                f"{self.name}: constant {name!r} is declared as {ref.dtype.label} {ref.shape} "
                f"and as {dtype.label} {shape}"
            )
        return ref

    def _ref(
        self,
        kind: RefKind,
        name: str,
        dtype: DType,
        shape: Shape,
        layout: ConstLayout = ConstLayout.PLAIN,
    ) -> Ref:
        ref = Ref(len(self.refs), kind, name, dtype, shape, layout)
        self.refs.append(ref)
        return ref

    def _temp(self, op: str, dtype: DType, shape: Shape) -> Ref:
        return self._ref(RefKind.TEMP, op, dtype, shape)

    def _node(
        self,
        op: str,
        inputs: tuple[Ref, ...],
        *outputs: Ref,
        updates: tuple[Ref, ...] = (),
        **attrs: int | float,
    ) -> Ref:
        self.nodes.append(Node(op, inputs, outputs, updates, tuple(sorted(attrs.items()))))
        return outputs[0]

    def _quantised(self, op: str, shape: Shape) -> tuple[Ref, Ref]:
        return self._temp(op, INT8, shape), self._temp(op, FLOAT32, shape[:1])

    def _expect(self, op: str, ref: Ref, dtype: DType, shape: tuple[object, ...] | None) -> None:
        fits = shape is None or (
            len(shape) == len(ref.shape)
            and all(want is None or want == got for want, got in zip(shape, ref.shape, strict=True))
        )
        if ref.dtype is not dtype or not fits:
            raise SignatureError(
                f"{self.name}: {op} got {ref.name!r} as {ref.dtype.label} {ref.shape}, "
                f"expected {dtype.label} {'of any shape' if shape is None else shape}"
            )


def static_extent(extent: object) -> int:
    """An extent that must be known at compile time.

    Raises:
        SignatureError: it is a Dim.
    """
    if not isinstance(extent, int):
        raise SignatureError(f"{extent!r} must be a static extent here")
    return extent
