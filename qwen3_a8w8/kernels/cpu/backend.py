"""The CPU backend: lowers programs to the native module and owns the memory they refer to.

The native side gets addresses; this module keeps every tensor alive that a
program is bound to. It checks neither shapes (signatures do) nor values of ids
or slots (the runner does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwen3_a8w8.errors import ConfigError, KernelUnavailableError, SignatureError
from qwen3_a8w8.kernels.cpu.native import NativeHandle, NativeObjects, load_native
from qwen3_a8w8.kernels.ops import SAMPLE_CONTROLS
from qwen3_a8w8.kernels.program import ConstLayout, Node, Program, Ref, RefKind
from qwen3_a8w8.kernels.signature import Dim, TensorLike

MAX_HEAD_DIM = 512
"""Largest head dimension that fits the kernels' stack buffers."""

MAX_IN_FEATURES = 65536
"""Most inputs of an int8 linear whose biased int32 sums (255 * 127 per input) can't overflow."""


class CpuBackend:
    """Kernels for x86-64 (AMX, AVX-512, AVX-VNNI, AVX2), aarch64 (dotprod) and any other CPU.

    Args:
        isa: instruction path by name (see `runnable_isas`), or None for the fastest that this
            machine can run.
        num_threads: threads that compute, the caller included; None: the cores this process
            may use (affinity mask and cgroup quota). Doesn't change results.

    Raises:
        KernelUnavailableError: the native module isn't built, or the machine can't run `isa`.
        ConfigError: `num_threads` is below 1.
    """

    device = "cpu"
    has_bf16_activations = False
    is_batch_invariant = True

    def __init__(self, isa: str | None = None, num_threads: int | None = None) -> None:
        native = load_native()
        runnable: list[str] = native.runnable_paths()
        if isa is None:
            isa = runnable[0]
        elif isa not in runnable:
            reason = (
                "this machine can't run it"
                if isa in native.compiled_paths()
                else f"it isn't one of the paths in this build {native.compiled_paths()}"
            )
            raise KernelUnavailableError(
                f"CPU instruction path {isa!r}: {reason}; use one of {runnable}, or None for the "
                "fastest"
            )
        if num_threads is None:
            num_threads = native.usable_cores()
        if num_threads < 1:
            raise ConfigError(f"num_threads is {num_threads}, expected at least 1")
        self.isa: str = isa
        self.num_threads: int = num_threads
        self.name = f"cpu-{isa}"
        self.packed_layout: str = native.packed_layout
        self._objects = NativeObjects(native, native.Runtime(isa, num_threads))

    def lower(self, program: Program) -> CpuExecutable:
        """Hands the program to the native side; scratch is allocated at the first run."""
        _check_limits(program)
        return CpuExecutable(program, self._objects)

    def pack(self, ref: Ref, tensor: Any) -> Any:
        """Packs an int8 linear; other constants stay as they are.

        Args:
            ref: the constant's declaration.
            tensor: a torch tensor on the CPU. Kept without a copy, except for the weight of an
                int8 linear, of which nothing is kept.
        """
        if ref.layout is not ConstLayout.LINEAR_INT8:
            return tensor
        out_features, in_features = (int(extent) for extent in tensor.shape)
        packed = self._objects.native.pack_linear(
            self._objects.runtime.get(), tensor.data_ptr(), out_features, in_features
        )
        return PackedLinear(self._objects, packed)

    def from_memory(self, ref: Ref, address: int, nbytes: int, owner: object) -> Any:
        """See `MappableBackend`."""
        if ref.layout is not ConstLayout.LINEAR_INT8:
            return MappedConstant(address, nbytes, owner)
        out_features, in_features = ref.shape
        packed = self._objects.native.LinearWeights(address, out_features, in_features)
        return PackedLinear(self._objects, packed, owner)

    def checksum(self, address: int, nbytes: int) -> int:
        """See `MappableBackend`."""
        return int(self._objects.native.checksum(self._objects.runtime.get(), address, nbytes))

    def read_bytes_per_s(self, num_bytes: int, prefetch_bytes: int, passes: int) -> list[float]:
        """How fast all threads together read memory, once per pass.

        Args:
            num_bytes: size of the buffer, which is allocated for it; larger than any cache.
            prefetch_bytes: how far ahead software prefetches; 0 for none.
            passes: measurements.
        """
        seconds = self._objects.native.probe_read(
            self._objects.runtime.get(), num_bytes, prefetch_bytes, passes
        )
        return [num_bytes / each for each in seconds]

    def int8_products_per_s(self, rounds: int, passes: int) -> list[float]:
        """int8 multiply-adds per second of all threads on registers alone, once per pass.

        Args:
            rounds: length of a pass; a round is some hundred to ten thousand products per thread.
            passes: measurements.
        """
        return list(
            self._objects.native.probe_multiply(self._objects.runtime.get(), rounds, passes)
        )

    def describe(self) -> dict[str, str | int | float]:
        """Device, instruction path and number of threads."""
        return {"device": self.device, "isa": self.isa, "threads": self.num_threads}

    def close(self) -> None:
        """Joins the threads, frees programs and packed weights; may be called again.

        Its executables then refuse to run.
        """
        self._objects.close()


class PackedLinear:
    """Packed weights of an int8 linear, held as long as their backend is open.

    Attributes:
        nbytes: size of the packed weights.
    """

    def __init__(self, objects: NativeObjects, packed: Any, owner: object = None) -> None:
        self.nbytes: int = packed.nbytes
        self.handle = objects.add(packed)
        self._objects = objects
        self._owner = owner  # keeps memory that the packed weights only refer to

    def data_ptr(self) -> int:
        """Address of the first byte."""
        return int(self.handle.get().data_ptr())


@dataclass(frozen=True, slots=True)
class MappedConstant:
    """A constant in memory that `owner` keeps alive."""

    address: int
    nbytes: int
    owner: object

    def data_ptr(self) -> int:
        """Address of the first byte."""
        return self.address


class CpuExecutable:
    """A program on the native side, with the owners of the memory it points to."""

    def __init__(self, program: Program, objects: NativeObjects) -> None:
        native = objects.native
        self._dims = _runtime_dims(program)
        self._arg_names = [ref.name for ref in program.refs if ref.kind is RefKind.ARG]
        self._constants = program.constants
        self._objects = objects
        self._bound: dict[str, Any] = {}
        counted_dim = counted_ref = -1
        if program.active_count is not None:
            name, dim = program.active_count
            counted_dim = self._dims.index(dim.name) if dim.name in self._dims else -1
            counted_ref = next(
                ref.index for ref in program.refs if ref.kind is RefKind.ARG and ref.name == name
            )
        self._program: NativeHandle = objects.add(
            native.Program(
                refs=[self._lower_ref(native, ref) for ref in program.refs],
                nodes=[_lower_node(native, node) for node in program.nodes],
                counted_dim=counted_dim,
                counted_ref=counted_ref,
            )
        )

    def bind(self, constants: Mapping[str, Any]) -> None:
        """Takes all constants as `CpuBackend.pack` returned them."""
        self._bound = dict(constants)
        for name, value in constants.items():
            ref = self._constants[name]
            if ref.layout is ConstLayout.LINEAR_INT8:
                self._program.get().bind_linear(ref.index, value.handle.get())
            else:
                self._program.get().bind(ref.index, value.data_ptr())

    def run(self, args: Mapping[str, TensorLike], dims: Mapping[str, int]) -> None:
        """Replays the program in one native call with the GIL released."""
        pointers = [args[name].data_ptr() for name in self._arg_names]
        extents = [dims[name] for name in self._dims]
        self._program.get().run(self._objects.runtime.get(), pointers, extents)

    @property
    def arena_bytes(self) -> int:
        """Bytes of scratch held now."""
        return 0 if self._program.is_released else int(self._program.get().arena_bytes)

    def close(self) -> None:
        """Frees scratch memory; may be called again."""
        if not self._program.is_released:
            self._program.get().close()

    def _lower_ref(self, native: Any, ref: Ref) -> Any:
        shape = [
            -1 - self._dims.index(extent.name) if isinstance(extent, Dim) else extent
            for extent in ref.shape
        ]
        return native.Ref(kind=ref.kind.value, item_bytes=ref.dtype.itemsize, shape=shape)


def runnable_isas() -> list[str]:
    """Instruction paths that this machine can run, fastest first.

    Raises:
        KernelUnavailableError: the native module isn't built.
    """
    return list(load_native().runnable_paths())


def _runtime_dims(program: Program) -> list[str]:
    names = [
        extent.name
        for param in program.signature.params
        for extent in param.shape
        if isinstance(extent, Dim)
    ]
    return list(dict.fromkeys(names))


def _lower_node(native: Any, node: Node) -> Any:
    """Raises TypeError for an attribute that the native side doesn't know."""
    inputs = _in_native_order(native, node.inputs) if node.op == "sample" else node.inputs
    return native.Node(
        op=node.op,
        inputs=[ref.index for ref in inputs],
        outputs=[ref.index for ref in node.outputs],
        updates=[ref.index for ref in node.updates],
        **node.attributes,
    )


def _in_native_order(native: Any, inputs: Sequence[Ref]) -> list[Ref]:
    """The inputs of `Ops.sample` as the kernel's arguments are listed, found by their names."""
    named = dict(zip(("logits", *SAMPLE_CONTROLS), inputs, strict=True))
    wanted: list[str] = native.sample_inputs
    if named.keys() != set(wanted):
        differing = sorted(named.keys() ^ set(wanted))
        raise SignatureError(
            f"sample: {differing} are inputs of only one of Ops.sample and the native kernel; "
            "build the native module from the same source"
        )
    return [named[name] for name in wanted]


def _check_limits(program: Program) -> None:
    for node in program.nodes:
        if node.op in ("linear", "linear_add"):
            in_features = node.inputs[2].shape[1]
            if isinstance(in_features, int) and in_features > MAX_IN_FEATURES:
                raise SignatureError(
                    f"{program.signature.name}: {node.inputs[2].name!r} has {in_features} inputs, "
                    f"the CPU kernels sum at most {MAX_IN_FEATURES} in int32"
                )
        if node.op in ("qk_norm_rope_cache", "qk_norm_rope_cache_bf16"):
            head_dim = node.updates[0].shape[4]
            if isinstance(head_dim, int) and (head_dim > MAX_HEAD_DIM or head_dim % 2):
                raise SignatureError(
                    f"{program.signature.name}: head_dim is {head_dim}, the CPU kernels take even "
                    f"head dims of at most {MAX_HEAD_DIM}"
                )
