"""The compile contract: a callable's annotations define its whole interface.

A callable is a Python function over an `Ops` set whose parameters declare dtype,
shape and direction:

    def decode(
        ops: Ops,
        token_ids: Annotated[Ref, In(INT32, BATCH, 8)],
        logits: Annotated[Ref, Out(FLOAT32, BATCH, VOCAB)],
    ) -> Ref: ...

`Static` extents are known at compile time, `Dim` extents at each call; a Dim
that occurs in several parameters must have one value in all of them.
`read_signature` turns annotations into a `Signature`, which checks arguments.
This module allocates nothing and knows no device.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, get_type_hints

from qwen3_a8w8.errors import Qwen3A8W8Error, SignatureError


class DType(enum.Enum):
    """Element types that cross a callable's boundary; the value is (name, bytes)."""

    INT8 = ("int8", 1)
    UINT8 = ("uint8", 1)
    BFLOAT16 = ("bfloat16", 2)
    INT32 = ("int32", 4)
    FLOAT32 = ("float32", 4)
    INT64 = ("int64", 8)

    @property
    def label(self) -> str:
        """Name as torch prints it, without the `torch.` prefix."""
        return self.value[0]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.value[1]


INT8, UINT8, BFLOAT16 = DType.INT8, DType.UINT8, DType.BFLOAT16
INT32, FLOAT32, INT64 = DType.INT32, DType.FLOAT32, DType.INT64


@dataclass(frozen=True, slots=True)
class Static:
    """An extent fixed at compile time, looked up by name in the model's static dims.

    Attributes:
        name: of the static dim.
        low: smallest value allowed.
    """

    name: str
    low: int = 1


@dataclass(frozen=True, slots=True)
class StaticDType:
    """An element type fixed at compile time: the one of `choices` with the size of a static dim.

    Attributes:
        item_bytes: name of the static dim, the bytes of one element.
        choices: element types of different sizes.
    """

    item_bytes: str
    choices: tuple[DType, ...]


@dataclass(frozen=True, slots=True)
class Dim:
    """An extent that is known at each call only.

    Attributes:
        name: its name in messages and in `Executable.run`.
        choices: the only values allowed, or empty for any value of at least `low`.
        low: smallest value allowed.
        error: exception type for a value that isn't one of `choices`.
    """

    name: str
    choices: tuple[int, ...] = ()
    low: int = 1
    error: type[Qwen3A8W8Error] = SignatureError

    def check(self, value: int, param: str) -> None:
        """Checks one value.

        Raises:
            SignatureError: or `error`; the value isn't allowed.
        """
        if self.choices and value not in self.choices:
            raise self.error(
                f"{self.name} is {value} (from {param!r}), but this callable is compiled for "
                f"{self.name} in {self.choices}; use one of these sizes"
            )
        if value < self.low:
            raise SignatureError(
                f"{self.name} is {value} (from {param!r}), expected at least {self.low}"
            )


Extent = int | Static | Dim


class Direction(enum.Enum):
    """What a callable does with a parameter's memory."""

    IN = "in"
    OUT = "out"
    INOUT = "inout"


@dataclass(frozen=True, slots=True)
class Spec:
    """Dtype, shape and direction of one parameter.

    Attributes:
        dtype: element type; after `read_signature` a DType.
        shape: extents, outermost first; tensors are contiguous.
        direction: in, out or inout.
        counts: set if this one-element int32 input is the number of live leading rows of a Dim;
            rows past it are idle, and no op reads or writes them.
    """

    dtype: DType | StaticDType
    shape: tuple[Extent, ...]
    direction: Direction
    counts: Dim | None = None


def In(dtype: DType, *shape: Extent, counts: Dim | None = None) -> Spec:  # noqa: N802 (reads as a type)
    """An input: only read."""
    return Spec(dtype, shape, Direction.IN, counts)


def Out(dtype: DType, *shape: Extent) -> Spec:  # noqa: N802
    """An output: live rows are written completely, never read."""
    return Spec(dtype, shape, Direction.OUT)


def InOut(dtype: DType | StaticDType, *shape: Extent) -> Spec:  # noqa: N802
    """State such as a KV cache: read and partly written."""
    return Spec(dtype, shape, Direction.INOUT)


class TensorLike(Protocol):
    """What an argument must provide; torch tensors do."""

    @property
    def shape(self) -> Any:
        """Extents."""
        ...

    @property
    def dtype(self) -> Any:
        """Element type; its `str` ends in the name of a DType."""
        ...

    @property
    def device(self) -> Any:
        """Where the memory is; its `type` is the name of the device."""
        ...

    def is_contiguous(self) -> bool:
        """Whether the elements are row-major without gaps."""
        ...

    def data_ptr(self) -> int:
        """Address of the first element."""
        ...


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter with resolved static extents."""

    name: str
    spec: Spec

    @property
    def dtype(self) -> DType:
        """Element type."""
        assert isinstance(self.spec.dtype, DType), "read_signature resolves static dtypes"
        return self.spec.dtype

    @property
    def shape(self) -> tuple[int | Dim, ...]:
        """Extents; after `resolve` no Static is left."""
        return tuple(e for e in self.spec.shape if not isinstance(e, Static))


@dataclass(frozen=True, slots=True)
class Signature:
    """A callable's name and resolved parameters; hashable, so it can key a cache."""

    name: str
    params: tuple[Param, ...]

    def param(self, name: str) -> Param:
        """The parameter called `name`; KeyError if there is none."""
        for param in self.params:
            if param.name == name:
                return param
        raise KeyError(name)

    def check(self, args: Mapping[str, TensorLike], device: str) -> dict[str, int]:
        """Checks the arguments of one call before anything is dispatched.

        Args:
            args: tensors by parameter name.
            device: device type that they must be on, e.g. "cpu".

        Returns:
            The value of every Dim, by name.

        Raises:
            SignatureError: an argument is missing, unknown or doesn't fit; the message names
                the parameter, what was expected and what was found.
        """
        expected_names = {param.name for param in self.params}
        if args.keys() != expected_names:
            missing = sorted(expected_names - args.keys())
            unknown = sorted(args.keys() - expected_names)
            raise SignatureError(
                f"{self.name}: missing arguments {missing}, unknown arguments {unknown}; "
                f"its parameters are {sorted(expected_names)}"
            )
        values: dict[str, int] = {}
        origin: dict[str, str] = {}
        for param in self.params:
            self._check_one(param, args[param.name], device, values, origin)
        return values

    def _check_one(
        self,
        param: Param,
        arg: TensorLike,
        device: str,
        values: dict[str, int],
        origin: dict[str, str],
    ) -> None:
        dtype, shape = param.dtype, param.shape
        where = f"{self.name}: argument {param.name!r}"
        found_dtype = str(arg.dtype).removeprefix("torch.")
        if found_dtype != dtype.label:
            raise SignatureError(f"{where} is {found_dtype}, expected {dtype.label}")
        found = tuple(int(extent) for extent in arg.shape)
        if len(found) != len(shape):
            raise SignatureError(
                f"{where} has shape {found}, expected {len(shape)} dimensions {_show(shape)}"
            )
        for axis, (extent, value) in enumerate(zip(shape, found, strict=True)):
            if isinstance(extent, int):
                if value != extent:
                    raise SignatureError(
                        f"{where} has {value} in dimension {axis}, expected {extent}; "
                        f"the signature says {_show(shape)}"
                    )
                continue
            extent.check(value, param.name)
            if values.setdefault(extent.name, value) != value:
                raise SignatureError(
                    f"{where} has {extent.name} = {value} in dimension {axis}, but "
                    f"{origin[extent.name]!r} has {extent.name} = {values[extent.name]}; "
                    f"give both the same extent"
                )
            origin.setdefault(extent.name, param.name)
        if not arg.is_contiguous():
            raise SignatureError(f"{where} isn't contiguous; pass a contiguous tensor")
        found_device = str(getattr(arg.device, "type", arg.device))
        if found_device != device:
            raise SignatureError(f"{where} is on {found_device!r}, expected {device!r}")


def read_signature(fn: Callable[..., Any], dims: Mapping[str, int]) -> Signature:
    """Reads a callable's annotations.

    Args:
        fn: function whose first parameter is the op set; every other one is annotated
            `Annotated[Ref, In|Out|InOut(...)]`.
        dims: values of the static extents by name.

    Returns:
        The signature with static extents replaced by numbers.

    Raises:
        SignatureError: a parameter has no spec, or a static extent or dtype has no value or one
            that isn't allowed; the message names parameter and dim.
    """
    name = fn.__name__
    hints = get_type_hints(fn, include_extras=True)
    params = []
    for param_name in list(inspect.signature(fn).parameters)[1:]:
        specs = [m for m in getattr(hints.get(param_name), "__metadata__", ()) if type(m) is Spec]
        if len(specs) != 1:
            raise SignatureError(
                f"{name}: parameter {param_name!r} has {len(specs)} specs, expected exactly one; "
                "annotate it as Annotated[Ref, In(dtype, *shape)] (or Out, InOut)"
            )
        params.append(Param(param_name, _resolve(name, param_name, specs[0], dims)))
    return Signature(name, tuple(params))


def _resolve(name: str, param_name: str, spec: Spec, dims: Mapping[str, int]) -> Spec:
    def static(dim: str) -> SignatureError:
        return SignatureError(
            f"{name}: parameter {param_name!r} needs the static dim {dim}, which is "
            f"{dims.get(dim)}; add it to the dims given to compile (there are {sorted(dims)})"
        )

    shape: list[Extent] = []
    for extent in spec.shape:
        if not isinstance(extent, Static):
            shape.append(extent)
            continue
        value = dims.get(extent.name)
        if value is None or value < extent.low:
            raise static(extent.name)
        shape.append(value)
    dtype = spec.dtype
    if isinstance(dtype, StaticDType):
        size = dims.get(dtype.item_bytes)
        found = [choice for choice in dtype.choices if choice.itemsize == size]
        if not found:
            raise static(dtype.item_bytes)
        dtype = found[0]
    return Spec(dtype, tuple(shape), spec.direction, spec.counts)


def _show(shape: tuple[int | Dim, ...]) -> str:
    return "[" + ", ".join(e.name if isinstance(e, Dim) else str(e) for e in shape) + "]"
