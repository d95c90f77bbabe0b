"""What a device's kernels must implement, and how a callable is compiled for them.

`compile_callable` records a Python function (see `record.py`), lowers it on a
backend and returns a `CompiledCallable` that checks every argument before
anything is dispatched. It needs no sample tensors: when it runs, neither weights
nor inputs exist yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from qwen3_a8w8.errors import SignatureError
from qwen3_a8w8.kernels.program import Program, Ref
from qwen3_a8w8.kernels.record import record
from qwen3_a8w8.kernels.signature import Signature, TensorLike

HostArrays = Mapping[str, NDArray[Any]]
"""What the host has uploaded to arguments, by name; not of every argument."""


class Executable(Protocol):
    """A lowered program."""

    @property
    def arena_bytes(self) -> int:
        """Bytes of scratch memory held now, enough for the largest run so far."""
        ...

    def bind(self, constants: Mapping[str, Any]) -> None:
        """Takes all constants by name, as `Backend.pack` returned them; keeps references."""
        ...

    def run(self, args: Mapping[str, TensorLike], dims: Mapping[str, int]) -> None:
        """One dispatch; blocks until the outputs are written.

        Args:
            args: already checked against the signature.
            dims: values of the run-time Dims.
        """
        ...

    def close(self) -> None:
        """Frees scratch memory; may be called again."""
        ...


@runtime_checkable
class HostReader(Executable, Protocol):
    """An executable that needs numbers of some arguments on the host, such as lengths.

    `run` fetches them from the device, which waits for all work; this doesn't need to.
    """

    def run_with(
        self, args: Mapping[str, TensorLike], dims: Mapping[str, int], host: HostArrays
    ) -> None:
        """One dispatch; blocks until the outputs are written.

        Args:
            args: already checked against the signature.
            dims: values of the run-time Dims.
            host: the same numbers as in `args`, as far as the host has written them.
        """
        ...


class Backend(Protocol):
    """One device's kernels.

    Attributes:
        name: unique; includes whatever changes results or speed of compiled code, such as the
            instruction path. Part of the compile cache's key.
        device: torch device type of all arguments.
        has_bf16_activations: floats between ops are rounded to bfloat16.
        is_batch_invariant: a row's bits don't depend on the rows beside it.
    """

    name: str
    device: str
    has_bf16_activations: bool

    @property
    def is_batch_invariant(self) -> bool:
        """See the class; final once callables are bound."""
        ...

    def lower(self, program: Program) -> Executable:
        """Turns a program into something that runs; allocates no tensors."""
        ...

    def pack(self, ref: Ref, tensor: TensorLike) -> Any:
        """Converts a constant to the layout that the kernels read.

        Args:
            ref: the constant's declaration (dtype, shape, layout).
            tensor: row-major on the CPU, of exactly that dtype and shape. The backend may keep
                it without a copy, so the caller must not write to it afterwards.

        Returns:
            Whatever `Executable.bind` of this backend takes.
        """
        ...

    def describe(self) -> dict[str, str | int | float]:
        """Device, instruction path, threads ... for logs and reports."""
        ...

    def close(self) -> None:
        """Stops threads and frees what the backend holds; may be called again.

        Executables of a closed backend may refuse to run.
        """
        ...


class Packed(Protocol):
    """A packed constant in host memory, such as a torch tensor."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        ...

    def data_ptr(self) -> int:
        """Address of its first byte; the bytes are contiguous."""
        ...


@runtime_checkable
class MappableBackend(Backend, Protocol):
    """A backend whose packed constants are plain host memory and can be stored in a file.

    Attributes:
        packed_layout: name of the layout that `pack` produces; changes whenever the layout does.
    """

    packed_layout: str

    def from_memory(self, ref: Ref, address: int, nbytes: int, owner: object) -> Packed:
        """The constant whose packed bytes, as `pack` produces them, are at an address.

        Args:
            ref: the constant's declaration.
            address: of the first byte, 64-byte aligned; never written to.
            nbytes: their number.
            owner: keeps the memory alive; the result refers to it.

        Returns:
            Whatever `Executable.bind` of this backend takes.
        """
        ...

    def checksum(self, address: int, nbytes: int) -> int:
        """A 64-bit checksum of host memory, equal on all machines of the same byte order."""
        ...


@runtime_checkable
class DeviceBackend(Backend, Protocol):
    """A backend with memory of its own.

    Attributes:
        workspace_tokens: context at which a full batch decodes once during warm-up, so that the
            ops' workspaces are allocated before the cache is sized.
    """

    workspace_tokens: int

    def free_memory_bytes(self) -> int:
        """Bytes of device memory that can be allocated now."""
        ...


class CheckedCall:
    """A callable with arguments that have been checked; may run any number of times.

    It keeps the tensors, whose shapes and dtypes must not change.
    """

    def __init__(
        self,
        executable: Executable,
        args: Mapping[str, TensorLike],
        dims: Mapping[str, int],
        host: HostArrays | None = None,
    ) -> None:
        self._executable = executable
        self._args = args
        self._dims = dims
        self._host = host if isinstance(executable, HostReader) else None

    def __call__(self) -> None:
        """One dispatch; outputs are written in place."""
        if self._host is None:
            self._executable.run(self._args, self._dims)
        else:
            assert isinstance(self._executable, HostReader)
            self._executable.run_with(self._args, self._dims, self._host)


class CompiledCallable:
    """A callable bound to a backend; call it with keyword arguments."""

    def __init__(self, program: Program, executable: Executable, device: str) -> None:
        self._program = program
        self._executable = executable
        self._device = device
        self._is_bound = not program.constants

    @property
    def signature(self) -> Signature:
        """The contract of its arguments."""
        return self._program.signature

    @property
    def constants(self) -> dict[str, Ref]:
        """What `bind` expects, by name."""
        return self._program.constants

    @property
    def arena_bytes(self) -> int:
        """Bytes of scratch memory held now, enough for the largest run so far."""
        return self._executable.arena_bytes

    def bind(self, constants: Mapping[str, Any]) -> None:
        """Gives the callable its weights, packed by the same backend.

        Args:
            constants: a superset of `self.constants` by name.

        Raises:
            SignatureError: one is missing.
        """
        missing = sorted(self.constants.keys() - constants.keys())
        if missing:
            raise SignatureError(
                f"{self.signature.name}: {len(missing)} constants are missing, the first is "
                f"{missing[0]!r}; bind all of CompiledCallable.constants"
            )
        self._executable.bind({name: constants[name] for name in self.constants})
        self._is_bound = True

    def __call__(self, **args: TensorLike) -> None:
        """Checks the arguments, then runs; outputs are written in place.

        Raises:
            SignatureError: an argument doesn't fit, or constants aren't bound yet.
            UnsupportedBatchSizeError: a batch size that isn't compiled.
        """
        self.check(**args)()

    def check(self, host: HostArrays | None = None, /, **args: TensorLike) -> CheckedCall:
        """Checks the arguments of a call, without making it.

        Args:
            host: see `HostReader`; looked into at each run.
            args: tensors by parameter name.

        Raises:
            SignatureError: an argument doesn't fit, or constants aren't bound yet.
            UnsupportedBatchSizeError: a batch size that isn't compiled.
        """
        dims = self.signature.check(args, self._device)
        if not self._is_bound:
            raise SignatureError(f"{self.signature.name} has no constants yet; call bind first")
        return CheckedCall(self._executable, args, dims, host)

    def close(self) -> None:
        """Frees scratch memory; may be called again."""
        self._executable.close()


CacheKey = tuple[Any, ...]


class Compiler:
    """Compiles callables for one backend and keeps them.

    The cache's key is made of owned, hashable values: the function, the resolved signature,
    the static dims, the options and the backend's name.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._cache: dict[CacheKey, CompiledCallable] = {}

    def compile(
        self,
        fn: Callable[..., Any],
        dims: Mapping[str, int],
        options: Mapping[str, int | float] | None = None,
    ) -> CompiledCallable:
        """Compiles `fn` from its annotations alone.

        Args:
            fn: see `signature.py`.
            dims: values of the static extents by name.
            options: further numbers that the function looks up.

        Returns:
            A callable whose constants aren't bound yet; the same object for the same arguments.

        Raises:
            SignatureError: the annotations are incomplete, or an op's operands don't fit.
        """
        options = dict(options or {})
        key = (
            fn,
            tuple(sorted(dims.items())),
            tuple(sorted(options.items())),
            self.backend.name,
        )
        compiled = self._cache.get(key)
        if compiled is None:
            program = record(fn, dims, options)
            executable = self.backend.lower(program)
            compiled = CompiledCallable(program, executable, self.backend.device)
            self._cache[key] = compiled
        return compiled

    def close(self) -> None:
        """Closes every compiled callable and the backend; may be called again."""
        for compiled in self._cache.values():
            compiled.close()
        self._cache.clear()
        self.backend.close()
